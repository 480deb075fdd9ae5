//! Lists the features of this program, and reports missing ones.

use std::sync::LazyLock;

use unisono::internals::MpiLibrary;

/// The optional commands, and the feature that provides each.
const COMMANDS: [(&str, &str); 7] = [
    ("train", "candle"),
    ("inspect-input", "candle"),
    ("serve-data", "service"),
    ("evaluate", "candle"),
    ("predict", "candle"),
    ("bench-step", "candle"),
    ("plot", "plot"),
];

const FEATURES: [(&str, bool); 10] = [
    ("mpi", cfg!(feature = "mpi")),
    ("ucx", cfg!(feature = "ucx")),
    ("nccl", cfg!(feature = "nccl")),
    ("cuda", cfg!(feature = "cuda")),
    ("candle", cfg!(feature = "candle")),
    ("parquet", cfg!(feature = "parquet")),
    ("arrow", cfg!(feature = "arrow")),
    ("remote", cfg!(feature = "remote")),
    ("service", cfg!(feature = "service")),
    ("plot", cfg!(feature = "plot")),
];

/// The output of `--version`: the version, the MPI that this program was compiled for, and its features.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mpi = MpiLibrary::compiled_for().unwrap_or_else(|| "none".to_owned());
    let features = FEATURES.iter().filter(|(_, is_built_in)| *is_built_in).map(|(name, _)| *name);
    let features: Vec<_> = features.collect();
    let listed = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    format!("{}\nMPI: {mpi}\nfeatures: {listed}", env!("CARGO_PKG_VERSION"))
});

pub(super) fn missing_command(name: &str) -> Option<String> {
    let (_, feature) = COMMANDS.into_iter().find(|&(command, _)| command == name)?;
    FEATURES.contains(&(feature, false)).then(|| format!("`{name}` {}", needs(&[feature])))
}

/// Returns a message with the required features, and how to build with them.
pub(super) fn needs(features: &[&str]) -> String {
    let nouns = if features.len() == 1 { "feature" } else { "features" };
    let names = features.join("` and `");
    let listed = features.join(",");
    format!(
        "needs the {nouns} `{names}`; build with `cargo build --release -p unisono-cli --features {listed}`"
    )
}

/// Parses a data set that this program can read.
#[cfg(feature = "candle")]
pub(super) fn source(text: &str) -> Result<unisono_data::Source, String> {
    let source: unisono_data::Source =
        text.parse().map_err(|error: unisono_data::DataError| error.to_string())?;
    let missing = source.missing_features();
    if missing.is_empty() { Ok(source) } else { Err(needs(&missing)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_commands_are_refused() {
        for (name, feature) in COMMANDS {
            let is_built_in = FEATURES.contains(&(feature, true));
            let message = missing_command(name);
            assert_eq!(message.is_none(), is_built_in, "{name}");
            let message = message.unwrap_or_default();
            assert!(is_built_in || message.ends_with(&format!("--features {feature}`")), "{message}");
        }
        assert_eq!(missing_command("trian"), None);
    }

    #[test]
    fn features_are_listed_in_the_syntax_of_cargo() {
        let command = "build with `cargo build --release -p unisono-cli --features";
        assert_eq!(needs(&["plot"]), format!("needs the feature `plot`; {command} plot`"));
        let both = format!("needs the features `parquet` and `remote`; {command} parquet,remote`");
        assert_eq!(needs(&["parquet", "remote"]), both);
    }

    #[cfg(feature = "candle")]
    #[test]
    fn scheme_that_is_not_compiled_in_is_refused() {
        for (name, feature, is_built_in) in [
            ("parquet:a", "parquet", cfg!(feature = "parquet")),
            ("arrow:a", "arrow", cfg!(feature = "arrow")),
            ("service:a:1", "service", cfg!(feature = "service")),
            ("csv:s3://bucket/a", "remote", cfg!(feature = "remote")),
        ] {
            let expected = if is_built_in { Ok(name.parse().unwrap()) } else { Err(needs(&[feature])) };
            assert_eq!(source(name), expected);
        }
    }
}
