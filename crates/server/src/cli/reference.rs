//! `relais completions` and `relais help-all`: the command line, described by itself. And which pages there are for
//! `relais reference`; their words are not here.

use std::fmt::Write as _;

use anyhow::Result;
use clap::{Args, Command, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use super::Cli;
use crate::output;

/// `relais completions`
#[derive(Debug, Args)]
#[command(after_help = "Bash:  relais completions bash > ~/.local/share/bash-completion/completions/relais\n\
                        Zsh:   relais completions zsh > ~/.zfunc/_relais\n\
                        Fish:  relais completions fish > ~/.config/fish/completions/relais.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// `relais reference`
#[derive(Debug, Args)]
pub struct ReferenceArgs {
    /// The page
    #[arg(value_enum)]
    pub page: ReferencePage,
}

/// A page of `docs/` that is made from the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReferencePage {
    /// Every key of a declaration file: its type, default and meaning
    Declarations,
    /// Every error number: when it happens, and what to do
    Errors,
}

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "relais", &mut script);
    Ok(output::data(&String::from_utf8_lossy(&script))?)
}

/// Prints the help of every command.
pub fn help_all() -> Result<()> {
    Ok(output::data(&document())?)
}

fn document() -> String {
    // Built, so that commands have the names and the global options they are used with; at a fixed width, so that the
    // document is the same on every terminal.
    let mut root = Cli::command().term_width(100);
    root.build();
    let mut text =
        String::from("# The command line\n\nThis is `relais help-all`, which prints the help of every command.\n");
    describe(&root, &mut text);
    text
}

fn describe(command: &Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let help = command.clone().render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    for inner in command.get_subcommands() {
        describe(inner, text);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_has_its_help_in_the_document() {
        let text = document();
        for name in ["relais", "relais serve", "relais service put", "relais config check", "relais help-all"] {
            assert!(text.contains(&format!("\n## {name}\n")), "{name} is not in\n{text}");
        }
        assert!(text.contains("Exit codes:"), "{text}");
        assert!(text.contains("[env: RELAIS_URL]") && !text.contains("RELAIS_URL="), "{text}");
    }

    #[test]
    fn completions_know_the_commands() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "relais", &mut script);
        assert!(String::from_utf8(script).unwrap().contains("authorization"));
    }

    #[test]
    fn the_settings_that_remedies_name_exist() {
        let mut settings = BTreeSet::new();
        let mut section = "";
        for line in include_str!("../config/relais.default.toml").lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name;
            } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
                settings.insert(format!("{section}.{key}"));
            }
        }
        let sections: BTreeSet<&str> = settings.iter().filter_map(|name| name.split('.').next()).collect();
        let mut named = 0;
        for number in relais_protocol::ErrorNumber::ALL {
            // Every second piece stands between backticks.
            let pieces =
                [number.cause(), number.remedy()].into_iter().flat_map(|text| text.split('`').skip(1).step_by(2));
            for code in pieces.filter(|code| code.split_once('.').is_some_and(|(first, _)| sections.contains(first))) {
                assert!(settings.contains(code), "{number:?} names {code}, which is no setting");
                named += 1;
            }
        }
        assert!(named > 20, "{named}");
    }
}
