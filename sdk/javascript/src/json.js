/**
 * The text of a part of a JSON document, as it was written.
 *
 * `JSON.parse` turns every number into a double: integers beyond 2^53 lose their last digits. Whoever needs them takes the
 * text of a body or a response instead, and parses it with what keeps them. Expects valid JSON.
 */

/**
 * The text of the member at the end of `path`, through objects; undefined if there is none.
 *
 * @param {string} text
 * @param {...string} path
 * @returns {string | undefined}
 */
export function member(text, ...path) {
  /** @type {string | undefined} */
  let found = text;
  for (const name of path) {
    if (found === undefined || found[0] !== '{') return undefined;
    found = lookUp(found, name);
  }
  return found;
}

/**
 * The texts of an array's elements.
 *
 * @param {string} text
 * @returns {string[]}
 */
export function elements(text) {
  const found = [];
  for (let at = skipBlanks(text, 1); text[at] !== ']'; ) {
    const end = skipValue(text, at);
    found.push(text.slice(at, end));
    at = skipBlanks(text, end);
    if (text[at] === ',') at = skipBlanks(text, at + 1);
  }
  return found;
}

/**
 * @param {string} text
 * @param {string} name
 */
function lookUp(text, name) {
  let found;
  for (let at = skipBlanks(text, 1); text[at] !== '}'; ) {
    const endOfKey = skipString(text, at);
    const key = JSON.parse(text.slice(at, endOfKey));
    const start = skipBlanks(text, skipBlanks(text, endOfKey) + 1);
    const end = skipValue(text, start);
    // Of two with the same name the last one counts, as for JSON.parse.
    if (key === name) found = text.slice(start, end);
    at = skipBlanks(text, end);
    if (text[at] === ',') at = skipBlanks(text, at + 1);
  }
  return found;
}

/**
 * @param {string} text
 * @param {number} at
 */
function skipBlanks(text, at) {
  while (' \t\n\r'.includes(text.charAt(at)) && at < text.length) at += 1;
  return at;
}

/**
 * @param {string} text
 * @param {number} at where its opening quote is
 */
function skipString(text, at) {
  for (at += 1; at < text.length && text[at] !== '"'; at += 1) {
    if (text[at] === '\\') at += 1;
  }
  return at + 1;
}

/**
 * @param {string} text
 * @param {number} at
 */
function skipValue(text, at) {
  if (text[at] === '"') return skipString(text, at);
  if (text[at] !== '{' && text[at] !== '[') {
    while (at < text.length && !',]} \t\n\r'.includes(text.charAt(at))) at += 1;
    return at;
  }
  let depth = 0;
  do {
    const character = text[at];
    if (character === '"') {
      at = skipString(text, at);
      continue;
    }
    if (character === '{' || character === '[') depth += 1;
    if (character === '}' || character === ']') depth -= 1;
    at += 1;
  } while (depth > 0 && at < text.length);
  return at;
}
