"""Writes prometheus-rule.yaml, the rules as an object of the Prometheus operator, from rules.yml."""

from pathlib import Path
from textwrap import indent

HERE = Path(__file__).parent

HEAD = """\
# Written by prometheus_rule.py from rules.yml: change that one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: nightshift
  labels:
    app.kubernetes.io/name: nightshift
spec:
"""


def written() -> str:
    """The object's text. kustomize cannot put a file into a spec."""
    rules = (HERE / "rules.yml").read_text()
    return HEAD + indent(rules[rules.index("groups:") :], "  ")


if __name__ == "__main__":
    (HERE / "prometheus-rule.yaml").write_text(written())
