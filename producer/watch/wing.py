"""Where watches take part: a duty of reapers, which looks at watched inputs."""

duties = "nightshift.producer.watch.look:duties"
