-- One row: by how many milliseconds the clock was set while tasks were there, with what is counted in durations moved along.
CREATE TABLE clock (
    single  INTEGER PRIMARY KEY DEFAULT 1 CHECK (single = 1),
    stepped INTEGER NOT NULL
);
INSERT INTO clock (stepped) VALUES (0);
