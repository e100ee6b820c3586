-- What `nightshift tune` measured.

CREATE TABLE tunings (
    model text NOT NULL,
    task text NOT NULL,
    hardware text NOT NULL,
    args jsonb NOT NULL,
    rows_per_second double precision NOT NULL,
    rounds integer NOT NULL DEFAULT 1,
    tuned_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, task, hardware)
);
COMMENT ON TABLE tunings IS
    'The arguments of an engine with which its model was fastest for a kind of task on some hardware.';
COMMENT ON COLUMN tunings.rounds IS
    'How often the model was tuned: each round has outputs of its own.';
