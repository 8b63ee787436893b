-- One row: by how many milliseconds the clock was set while tasks were there, with what is counted in durations moved along.
CREATE TABLE relais.clock (
    single  boolean PRIMARY KEY DEFAULT true CHECK (single),
    stepped bigint NOT NULL
);
INSERT INTO relais.clock (stepped) VALUES (0);
