//! Just enough of SPDX licence expressions: OR, AND, WITH, parentheses.
//!
//! Judges whether an expression can be satisfied with accepted licences alone. Does not know the
//! list of licences that exist; what is not accepted by name is refused.

use anyhow::{Result, bail};

/// Whether accepted licences suffice. `accepts` is asked for `LICENCE` or `LICENCE WITH EXCEPTION`.
pub fn satisfied(expression: &str, accepts: &dyn Fn(&str) -> bool) -> Result<bool> {
    // Before SPDX, a slash meant "or"; old crates still write it.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, accepts };
    let verdict = parser.alternatives()?;
    match parser.words.first() {
        None => Ok(verdict),
        Some(word) => bail!("unexpected {word:?} in licence expression {expression:?}"),
    }
}

struct Parser<'a> {
    words: &'a [&'a str],
    accepts: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    /// `a OR b`: one suffices. AND binds tighter.
    fn alternatives(&mut self) -> Result<bool> {
        let mut verdict = self.requirements()?;
        while self.take("OR") {
            verdict |= self.requirements()?;
        }
        Ok(verdict)
    }

    /// `a AND b`: both must be met.
    fn requirements(&mut self) -> Result<bool> {
        let mut verdict = self.licence()?;
        while self.take("AND") {
            verdict &= self.licence()?;
        }
        Ok(verdict)
    }

    fn licence(&mut self) -> Result<bool> {
        if self.take("(") {
            let verdict = self.alternatives()?;
            if !self.take(")") {
                bail!("a parenthesis is not closed");
            }
            return Ok(verdict);
        }
        let name = self.name()?;
        if self.take("WITH") {
            let exception = self.name()?;
            return Ok((self.accepts)(&format!("{name} WITH {exception}")));
        }
        Ok((self.accepts)(name))
    }

    fn name(&mut self) -> Result<&'a str> {
        match self.words.split_first() {
            Some((word, rest)) if !["OR", "AND", "WITH", "(", ")"].contains(word) => {
                self.words = rest;
                Ok(word)
            }
            other => bail!("expected a licence, found {:?}", other.map(|(word, _)| word)),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    fn accepted(expression: &str) -> bool {
        let accepts = |name: &str| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&name);
        satisfied(expression, &accepts).unwrap()
    }

    #[test]
    fn one_alternative_suffices_and_every_requirement_counts() {
        assert!(accepted("MIT"));
        assert!(accepted("GPL-3.0-only OR MIT"));
        assert!(accepted("MIT AND ISC"));
        assert!(!accepted("MIT AND GPL-3.0-only"));
        assert!(!accepted("GPL-3.0-only"));
    }

    #[test]
    fn and_binds_tighter_than_or_and_parentheses_win() {
        assert!(accepted("MIT OR ISC AND GPL-3.0-only"));
        assert!(!accepted("(MIT OR ISC) AND GPL-3.0-only"));
        assert!(accepted("(GPL-3.0-only OR (ISC AND MIT)) AND MIT"));
    }

    #[test]
    fn an_exception_belongs_to_its_licence() {
        assert!(accepted("Apache-2.0 WITH LLVM-exception"));
        assert!(!accepted("Apache-2.0"));
        assert!(!accepted("GPL-2.0-only WITH LLVM-exception"));
    }

    #[test]
    fn a_slash_is_the_or_of_old() {
        assert!(accepted("MIT/GPL-3.0"));
        assert!(accepted("GPL-3.0 / MIT"));
    }

    #[test]
    fn nonsense_is_an_error_and_not_a_permission() {
        for nonsense in ["", "MIT OR", "AND MIT", "(MIT", "MIT)", "MIT ISC", "MIT WITH"] {
            assert!(satisfied(nonsense, &|_| true).is_err(), "{nonsense:?}");
        }
    }
}
