"""Where pictures take part: a duty of reapers, which looks at each open job and at what was closed since."""

duties = "nightshift.producer.pictures.record:duties"
