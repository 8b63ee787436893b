-- Types and identities that envelopes.sql does not have. Part 1: before the engine starts, so that rows are read (op 'r').
CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE EXTENSION isn;
CREATE TYPE mood AS ENUM ('sad','ok','happy');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN d_int AS int; CREATE DOMAIN d_num AS numeric(10,2); CREATE DOMAIN d_text AS varchar(20);
CREATE DOMAIN d_ts AS timestamp(3); CREATE DOMAIN d_ints AS int[]; CREATE DOMAIN d_of_d AS d_num;
CREATE TABLE t_types (id int PRIMARY KEY,
  o oid, m money, nm name, ci citext, cd cidr, mac macaddr, mac8 macaddr8, i4r int4range, i8r int8range, nr numrange, tsr tsrange,
  tstzr tstzrange, dr daterange, tsv tsvector, tsq tsquery, x xml, lt ltree, hs hstore, b1 bit(1), b5 bit(5), b12 bit(12), vb varbit,
  vb12 varbit(12), pt point, ln line, ls lseg, bx box, ph path, pg polygon, cl circle, cmp pair, mr int4multirange, di d_int, dn d_num,
  dt d_text, dts d_ts, das d_ints, dd d_of_d, pl pg_lsn, jp jsonpath, snap txid_snapshot, ch "char", bp bpchar, lq lquery,
  isbn isbn13, rc regclass, x8 xid8);
CREATE TABLE t_times (id int PRIMARY KEY,
  t0 time(0), t1 time(1), t3 time(3), t4 time(4), t6 time(6), ts0 timestamp(0), ts1 timestamp(1), ts2 timestamp(2), ts3 timestamp(3),
  ts4 timestamp(4), ts6 timestamp(6), ts timestamp, tz0 timestamptz(0), tz3 timestamptz(3), tz timestamptz, ttz0 timetz(0), ttz timetz,
  d date, iv interval, iv0 interval(0), iym interval year to month);
CREATE TABLE t_numbers (id int PRIMARY KEY,
  n1 numeric(5,0), n2 numeric(5,-2), n3 numeric(3,5), n4 numeric(38,10), n5 numeric(3), n numeric, r real, f double precision, i8 bigint, i2 smallint, m money);
CREATE TABLE t_arrays (id int PRIMARY KEY,
  bo bool[], i2 int2[], i8 int8[], f4 real[], f8 double precision[], nu numeric[], nus numeric(10,2)[], vc varchar[], c3 char(3)[], by bytea[], da date[],
  ti time[], ttz timetz[], ts timestamp[], ts3 timestamp(3)[], tz timestamptz[], iv interval[], uu uuid[], js json[], jb jsonb[], ine inet[], cd cidr[], mac macaddr[],
  mo money[], nm name[], xm xml[], po point[], bi bit(3)[], vb varbit[], en mood[], dom d_int[], ci citext[], hs hstore[], oi oid[], ir int4range[], nr numrange[], dr daterange[],
  tr tsrange[], tzr tstzrange[], cmp pair[], lt ltree[], tv tsvector[], i44 int[][]);
CREATE TABLE t_toast (id int PRIMARY KEY, t text, v varchar, by bytea, ta text[], ia int[], ba bigint[], bya bytea[], jb jsonb, js json, nu numeric, hs hstore, x xml, ci citext, dt d_text,
  da date[], ua uuid[], fa float8[], tsa timestamp[], tza timestamptz[], va varbit, i2a int2[], nua numeric[], ea mood[], lt ltree, n int) WITH (toast_tuple_target = 128);
ALTER TABLE t_toast ALTER t SET STORAGE EXTERNAL, ALTER v SET STORAGE EXTERNAL, ALTER by SET STORAGE EXTERNAL, ALTER ta SET STORAGE EXTERNAL, ALTER ia SET STORAGE EXTERNAL,
  ALTER ba SET STORAGE EXTERNAL, ALTER bya SET STORAGE EXTERNAL, ALTER jb SET STORAGE EXTERNAL, ALTER js SET STORAGE EXTERNAL, ALTER hs SET STORAGE EXTERNAL, ALTER x SET STORAGE EXTERNAL, ALTER ci SET STORAGE EXTERNAL,
  ALTER da SET STORAGE EXTERNAL, ALTER ua SET STORAGE EXTERNAL, ALTER fa SET STORAGE EXTERNAL, ALTER tsa SET STORAGE EXTERNAL, ALTER tza SET STORAGE EXTERNAL, ALTER va SET STORAGE EXTERNAL,
  ALTER i2a SET STORAGE EXTERNAL, ALTER nua SET STORAGE EXTERNAL, ALTER ea SET STORAGE EXTERNAL, ALTER lt SET STORAGE EXTERNAL, ALTER nu SET STORAGE EXTERNAL;
CREATE TABLE t_pair (v text, b int, a text, PRIMARY KEY (a, b));
CREATE TABLE t_index (id int PRIMARY KEY, code text NOT NULL, v text);
CREATE UNIQUE INDEX t_index_code ON t_index (code);
ALTER TABLE t_index REPLICA IDENTITY USING INDEX t_index_code;
CREATE TABLE t_unique (code text NOT NULL, v text);
CREATE UNIQUE INDEX t_unique_code ON t_unique (code);
ALTER TABLE t_unique REPLICA IDENTITY USING INDEX t_unique_code;
CREATE TABLE t_heap (a int, b text);
ALTER TABLE t_heap REPLICA IDENTITY FULL;
CREATE TABLE t_defaults (id serial PRIMARY KEY, a int NOT NULL DEFAULT 7, b text DEFAULT 'x', c numeric(5,2) DEFAULT 1.5, d timestamptz NOT NULL DEFAULT now(), e boolean NOT NULL DEFAULT false,
  f int DEFAULT 3, g text NOT NULL DEFAULT 'y"z', h date DEFAULT '2024-01-02', i bigint DEFAULT 1 + 1);
CREATE TABLE t_required (id int PRIMARY KEY, bo boolean NOT NULL, i2 int2 NOT NULL, i8 int8 NOT NULL, f4 real NOT NULL, f8 float8 NOT NULL, nu numeric NOT NULL, nus numeric(6,2) NOT NULL, vc varchar(9) NOT NULL,
  c3 char(3) NOT NULL, by bytea NOT NULL, da date NOT NULL, ti time NOT NULL, ti3 time(3) NOT NULL, ttz timetz NOT NULL, ts timestamp NOT NULL, ts3 timestamp(3) NOT NULL, tz timestamptz NOT NULL, iv interval NOT NULL, uu uuid NOT NULL,
  jb jsonb NOT NULL, ine inet NOT NULL, mac macaddr NOT NULL, mo money NOT NULL, xm xml NOT NULL, po point NOT NULL, b1 bit NOT NULL, bi bit(3) NOT NULL, en mood NOT NULL, dom d_int NOT NULL, ci citext NOT NULL, hs hstore NOT NULL,
  oi oid NOT NULL, ir int4range NOT NULL, lt ltree NOT NULL, tv tsvector NOT NULL, ia int[] NOT NULL, ta text[] NOT NULL);
CREATE TABLE "Odd Name-é" ("Id" int PRIMARY KEY, "a b" text, "q""uote" int);
INSERT INTO t_pair VALUES ('read', 1, 'x');
-- Part 2: each statement its own transaction
INSERT INTO t_types VALUES (1, 4000000000, -1234.5, 'a name', 'CiText', '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', '[1,5)', '(,7]', '(1.5,2.50]',
  '["2024-02-29 10:00:00.5","2024-03-01")', '["2024-02-29 10:00:00+02",)', '[2024-02-29,2024-03-02)', 'a fat cat', 'fat & rat', '<a b="c">d</a>', 'Top.Science', '"a"=>"1", "b"=>NULL, "c\"d"=>"e"',
  B'1', B'10110', B'101100000001', B'1011', B'10', '(1.5,-2)', '{1,2,3}', '[(0,0),(1,1)]', '((0,0),(2,2))', '((0,0),(1,1),(2,0))', '((0,0),(1,1),(2,0))', '<(1,2),3>', ROW(1,'x'), '{[1,3),[5,7)}',
  5, 12.3, 'dom', '2024-02-29 23:59:59.123', '{1,2}', 4.5, '16/B374D848', '$.a[*]', '10:20:10,14', 'c', 'bp  ', '*.a.*', '978-0-11-000533-1', 'pg_class', '42');
INSERT INTO t_types (id) VALUES (2);
INSERT INTO t_types (id, m, b1, b5, b12, vb, vb12, hs, tsr, i4r, nm, lt) VALUES (3, 12345678.91, B'0', B'00001', B'000000000000', B'', B'111100001111', '', 'empty', 'empty', '', '');
INSERT INTO t_types (id, vb, b12, bx, ph, o) VALUES (4, B'1010101010101010101010101', B'000000000001', '((3,4),(1,2))', '[(0,0),(1,1.25)]', 1);
INSERT INTO t_times VALUES (1, '10:11:12', '10:11:12.1', '10:11:12.123', '10:11:12.1234', '10:11:12.123456', '2024-02-29 10:11:12', '2024-02-29 10:11:12.1', '2024-02-29 10:11:12.12', '2024-02-29 10:11:12.123',
  '2024-02-29 10:11:12.1234', '2024-02-29 10:11:12.123456', '2024-02-29 10:11:12.12', '2024-02-29 10:11:12+00', '2024-02-29 10:11:12.120+00', '2024-02-29 10:11:12.100+00', '10:11:12+02', '10:11:12.120-03:30', '0001-01-01', '1 mon', '00:00:01.6', '1 year 1 mon');
INSERT INTO t_times VALUES (2, '24:00:00', '00:00:00', '00:00:00', '24:00:00', '00:00', 'infinity', '-infinity', 'infinity', '-infinity', 'infinity', '-infinity', 'infinity', 'infinity', '-infinity', '-infinity', '24:00:00+00', '00:00:00+05', 'infinity', '-1 mon -2 days +00:00:00.000001', '0', '-1 mon');
INSERT INTO t_times (id, ts, ts0, ts3, tz, tz0, tz3, d, t6, iv, ttz) VALUES (3, '0044-03-15 01:02:03.5 BC', '0001-01-01 00:00:00', '1969-12-31 23:59:59.999', '0044-03-15 01:02:03.5+00 BC', '12024-01-02 03:04:05+00', '1960-01-01 00:00:00.001+00', '-infinity', '00:00:00.000001', '100 years 11 mons 29 days 23:59:59.999999', '23:00:00-05');
INSERT INTO t_times (id, ts, ts3, ts6, tz, d, iv, t3, t6, ttz) VALUES (4, '12024-01-02 03:04:05', '12024-01-02 03:04:05', '2024-01-02 00:00:00', '2024-01-02 03:04:00+00', '12024-01-02', '00:00:00.5', '10:11:00', '10:00:00', '10:00:00+00');
INSERT INTO t_times (id, d, ts, ts6, tz, iv, ttz) VALUES (5, '1500-02-28', '1500-02-28 00:00:00', '1582-10-10 12:00:00', '1500-02-28 12:00:00+00', '-00:00:01.5', '01:02:03.000100-01'), (6, '4714-11-24 BC', '4714-11-24 00:00:00 BC', '2262-04-11 23:47:16.854775', '4714-11-24 00:00:00+00 BC', '178000 years', '00:00:00+14');
INSERT INTO t_numbers VALUES (1, 12345, 123456, 0.00123, 1234567890123456789012345678.0123456789, 999, 1e30, 1e20, 1e-7, 9223372036854775807, -32768, 0);
INSERT INTO t_numbers VALUES (2, 0, 0, 0, 0, -1, 0, '-Infinity', '-Infinity', -9223372036854775808, 32767, -0.01);
INSERT INTO t_numbers (id, n, r, f, n1) VALUES (3, 'Infinity', 3, 3, 128), (4, '-Infinity', 'NaN', 'NaN', -128), (5, 0.00, '-0', '-0', 'NaN'), (6, 1.500, 16777216, 12345678.5, -129), (7, -1e-20, 1.17549435e-38, 1.7976931348623157e308, 255), (8, 100, 0.001, 0.0001, 256);
INSERT INTO t_arrays VALUES (1, '{t,f,NULL}', '{1,-2}', '{1,9223372036854775807}', '{1.5,NaN}', '{0.1,Infinity}', '{1.5,NULL,1e20}', '{1.50,2}', '{a,"b,c",NULL,"NULL",""}', '{a,bcd}', '{"\\xdead",NULL}', '{2024-02-29,NULL}',
  '{10:11:12.5}', '{10:11:12.5+02}', '{"2024-02-29 10:11:12.5"}', '{"2024-02-29 10:11:12.5"}', '{"2024-02-29 10:11:12.5+02"}', '{"1 day"}', '{00000000-0000-0000-0000-000000000001}', '{"{\"a\":1}"}', '{"{\"a\": 1}",null,"null"}', '{10.0.0.1}', '{10.0.0.0/8}', '{08:00:2b:01:02:03}',
  '{1.5}', '{nm}', '{<a/>}', '{"(1,2)"}', '{101}', '{1,01}', '{ok,sad}', '{1,2}', '{Ci}', ARRAY['a=>1'::hstore], '{5}', '{"[1,5)"}', '{"[1.5,2]"}', '{"[2024-01-01,2024-01-02)"}', '{"[2024-01-01,2024-01-02)"}', '{"[2024-01-01,2024-01-02)"}',
  ARRAY[ROW(1,'x')::pair], '{a.b}', ARRAY['a b'::tsvector], '{{1,2},{3,4}}');
INSERT INTO t_arrays (id) VALUES (2);
INSERT INTO t_arrays (id, bo, vc, by, nu, tz, da) VALUES (3, '{}', '{}', '{}', '{}', '{}', '{}'), (4, '{NULL}', '{"a\\b\"c"}', '{NULL}', '{NaN}', '{infinity}', '{infinity}');
INSERT INTO t_toast SELECT 2, repeat('a',200), repeat('b',200), repeat('c',200)::bytea, array_fill('d'::text, ARRAY[60]), array_fill(7, ARRAY[60]), array_fill(7::bigint, ARRAY[60]), array_fill('\xde'::bytea, ARRAY[60]),
  to_jsonb(repeat('e',200)), to_json(repeat('f',200)), (repeat('123456789',60))::numeric, hstore('a', repeat('g',200)), ('<a>' || repeat('h',200) || '</a>')::xml, repeat('i',200), 'short',
  array_fill('2024-01-01'::date, ARRAY[60]), array_fill('00000000-0000-0000-0000-000000000001'::uuid, ARRAY[20]), array_fill(1.5::float8, ARRAY[60]), array_fill('2024-01-01'::timestamp, ARRAY[60]),
  array_fill('2024-01-01'::timestamptz, ARRAY[60]), repeat('1', 2000)::varbit, array_fill(1::int2, ARRAY[60]), array_fill(1.5::numeric, ARRAY[60]), array_fill('ok'::mood, ARRAY[60]), rtrim(repeat('abcd.', 40), '.')::ltree, 1;
UPDATE t_toast SET n = 2;
UPDATE t_toast SET id = 3;
INSERT INTO t_pair VALUES ('v', 2, 'x');
UPDATE t_pair SET b = 3, v = 'w' WHERE b = 2;
UPDATE t_pair SET v = 'u' WHERE b = 3;
DELETE FROM t_pair WHERE b = 3;
INSERT INTO t_index VALUES (1, 'a', 'v');
UPDATE t_index SET v = 'w';
UPDATE t_index SET code = 'b';
UPDATE t_index SET id = 2;
DELETE FROM t_index;
INSERT INTO t_unique VALUES ('a', 'v');
UPDATE t_unique SET v = 'w';
UPDATE t_unique SET code = 'b';
DELETE FROM t_unique;
INSERT INTO t_heap VALUES (1, 'x'), (NULL, NULL);
UPDATE t_heap SET b = 'y' WHERE a = 1;
DELETE FROM t_heap WHERE a = 1;
INSERT INTO t_defaults (a, d) VALUES (1, '2024-02-29 10:11:12+00');
UPDATE t_defaults SET id = 9;
INSERT INTO t_required VALUES (1, true, 2, 3, 1.5, 2.5, 3.25, 4.5, 'vc', 'c3', '\xff', '2024-02-29', '10:11:12', '10:11:12', '10:11:12+00', '2024-02-29 10:11:12', '2024-02-29 10:11:12', '2024-02-29 10:11:12+00', '1 day', '00000000-0000-0000-0000-000000000001',
  '{}', '10.0.0.1', '08:00:2b:01:02:03', 1, '<a/>', '(1,2)', B'1', B'101', 'happy', 4, 'ci', 'a=>1', 7, '[1,2)', 'a.b', 'a', '{1}', '{x}');
DELETE FROM t_required;
INSERT INTO "Odd Name-é" VALUES (1, E'tab\tnewline\ncontrol\x01quote"back\\slash/ é ☃ 😀 \x7f', 2);
ALTER TABLE t_heap ADD COLUMN c int DEFAULT 5;
INSERT INTO t_heap VALUES (2, 'z', 6);
ALTER TABLE t_heap DROP COLUMN b;
INSERT INTO t_heap VALUES (3, 7);
