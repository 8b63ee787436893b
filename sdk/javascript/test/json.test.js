/** The text of a part of a JSON document. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { elements, member } from '../src/json.js';

test('a member is found through objects, as it was written', () => {
  const text = ' {"a": {"}": 1, "b" : [1, {"c":"]\\"}"}] }, "n": 12345678901234567890 ,"e":{},"s":"x"}'.trim();
  assert.equal(member(text, 'n'), '12345678901234567890');
  assert.equal(member(text, 'a', 'b'), '[1, {"c":"]\\"}"}]');
  assert.equal(member(text, 'a', '}'), '1');
  assert.equal(member(text, 'e'), '{}');
  assert.equal(member(text, 's'), '"x"');
  assert.equal(member(text), text);
});

test('what is not there is undefined', () => {
  for (const path of [['b'], ['a', 'b'], ['a', 'b', 'c']]) assert.equal(member('{"a": 1}', ...path), undefined);
  assert.equal(member('[1]', 'a'), undefined);
  assert.equal(member('{}', 'a'), undefined);
});

test('a name with escapes is found by what it means, and the last of two counts', () => {
  assert.equal(member('{"\\u0061": 1, "\\"": 2}', 'a'), '1');
  assert.equal(member('{"\\u0061": 1, "\\"": 2}', '"'), '2');
  assert.equal(member('{"a": 1, "a": 2}', 'a'), '2');
});

test('elements are found whatever is in them', () => {
  assert.deepEqual(elements('[ 1 , "a,]" , [2,[3]] , {"b": [4, 5]} ,null]'), ['1', '"a,]"', '[2,[3]]', '{"b": [4, 5]}', 'null']);
  assert.deepEqual(elements('[]'), []);
  assert.deepEqual(elements('[ ]'), []);
});

test('every part of a document parses to what the document says', () => {
  const value = { data: { tasks: [{ 'a"b\\': [[], {}, '\u2028', -1.5e-7, true, null, '{"x":['] }, {}], 'é': '' } };
  for (const text of [JSON.stringify(value), JSON.stringify(value, null, '\t')]) {
    assert.deepEqual(elements(member(text, 'data', 'tasks') ?? '').map((part) => JSON.parse(part)), value.data.tasks);
    assert.equal(member(text, 'data', 'é'), '""');
  }
});
