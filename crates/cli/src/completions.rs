//! `unisono completions`: prints the script that completes command lines in a shell.

use clap::Args as ClapArgs;
use clap_complete::{Shell, generate};

use super::usage;

#[derive(Debug, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// Shell that loads the script
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish"]))]
    shell: String,
}

const AFTER_HELP: &str = "\
Examples:
  unisono completions bash > ~/.local/share/bash-completion/completions/unisono
  unisono completions zsh > ~/.zfunc/_unisono
  unisono completions fish > ~/.config/fish/completions/unisono.fish";

pub(super) fn run(args: &Args) {
    let shell: Shell = args.shell.parse().expect("the command line lists the shells");
    let mut text = Vec::new();
    generate(shell, &mut usage::command(), "unisono", &mut text);
    print!("{}", String::from_utf8(text).expect("names of options are text"));
}
