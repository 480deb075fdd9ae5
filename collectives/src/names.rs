//! Names on the command line: parsing, and errors with suggestions.

/// The error for an unknown name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} is called `{name}`;{} there are {}", self.suggestion(), self.known.join(", "))]
pub struct UnknownName {
    /// The kind of thing: "algorithm".
    pub kind: &'static str,
    /// The given name.
    pub name: String,
    /// The valid names.
    pub known: Vec<&'static str>,
}

/// The similarity from which a name counts as a misspelling of another (Jaro and Winkler's measure).
const MIN_SIMILARITY: f64 = 0.75;

impl UnknownName {
    /// Returns the most similar valid name, if it is similar enough.
    pub fn meant(&self) -> Option<&'static str> {
        let similar = self.known.iter().map(|known| (strsim::jaro_winkler(&self.name, known), known));
        let best = similar.max_by(|(one, _), (other, _)| one.total_cmp(other));
        best.filter(|(similarity, _)| *similarity > MIN_SIMILARITY).map(|(_, known)| *known)
    }

    fn suggestion(&self) -> String {
        self.meant().map_or_else(String::new, |known| format!(" did you mean `{known}`?"))
    }
}

/// Returns the value in `all` with this name.
///
/// # Errors
/// [`UnknownName`] if there is none, with the most similar name as a suggestion.
pub fn find<T: Copy>(
    kind: &'static str,
    name: &str,
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<T, UnknownName> {
    let found = all.iter().copied().find(|&one| name_of(one) == name);
    found.ok_or_else(|| UnknownName {
        kind,
        name: name.to_owned(),
        known: all.iter().map(|&one| name_of(one)).collect(),
    })
}

/// Implements [`Display`](std::fmt::Display) and [`FromStr`](std::str::FromStr) for a type that has `ALL` and `name()`,
/// or defines an enum with all four from the names of its variants, and their numbers if it has some (`High = "high" as 1`).
///
/// ```
/// unisono_collectives::named! {
///     /// A way to tune.
///     #[derive(Debug, Clone, Copy, PartialEq)]
///     pub enum Tune: "tune" {
///         /// Above all others.
///         High = "high",
///         /// Below all others.
///         Low = "low",
///     }
/// }
///
/// assert_eq!(Tune::ALL.map(Tune::name), ["high", "low"]);
/// assert_eq!("low".parse(), Ok(Tune::Low));
/// let error = "hgh".parse::<Tune>().unwrap_err().to_string();
/// assert_eq!(error, "no tune is called `hgh`; did you mean `high`? there are high, low");
/// ```
#[macro_export]
macro_rules! named {
    ($named:ty, $kind:literal) => {
        impl ::std::fmt::Display for $named {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $named {
            type Err = $crate::names::UnknownName;

            fn from_str(name: &str) -> ::std::result::Result<Self, Self::Err> {
                $crate::names::find($kind, name, &Self::ALL, Self::name)
            }
        }
    };
    (
        $(#[$of_enum:meta])*
        $vis:vis enum $named:ident: $kind:literal {
            $($(#[$of_variant:meta])* $variant:ident = $name:literal $(as $number:literal)?,)+
        }
    ) => {
        $(#[$of_enum])*
        $vis enum $named {
            $($(#[$of_variant])* $variant $(= $number)?,)+
        }

        impl $named {
            /// All variants.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name on the command line.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        $crate::names::named!($named, $kind);
    };
}
pub use named;
