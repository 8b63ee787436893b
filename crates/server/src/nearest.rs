//! "Did you mean …?": the known name that is nearest to one that is not known.
//!
//! Used by everything that refuses unknown names. It never corrects anything by itself.

/// The known name that `unknown` was probably meant to be, if one is near enough.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let unknown = unknown.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(&unknown, &name.to_lowercase()), name))
        // Below this, what is suggested has little to do with what was written.
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

/// The words to put behind a refusal: `: did you mean …?`, or nothing.
pub fn did_you_mean<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(unknown, known).map(|name| format!(": did you mean `{name}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_gets_the_nearest_name_and_nonsense_gets_none() {
        let known = ["database.url", "server.listen", "purge.any"];
        assert_eq!(nearest("databse.url", known), Some("database.url"));
        assert_eq!(nearest("Server.Listne", known), Some("server.listen"));
        assert_eq!(nearest("zzz", known), None);
        assert_eq!(did_you_mean("zzz", known), "");
    }
}
