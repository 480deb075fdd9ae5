//! Names on the command line: how a value is found by its name, and what is said where there is none.

/// A name that nothing has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} is called {name:?}{}; there are {}", self.suggestion(), self.known.join(", "))]
pub struct UnknownName {
    /// What should have had the name: "algorithm".
    pub kind: &'static str,
    /// The name that was given.
    pub name: String,
    /// The names that there are.
    pub known: Vec<&'static str>,
}

/// How alike two names must be for one to be a misspelling of the other (Jaro and Winkler's measure).
const ALIKE: f64 = 0.75;

impl UnknownName {
    /// The name that was meant, if one of them is much alike.
    pub fn meant(&self) -> Option<&'static str> {
        let alike = self.known.iter().map(|known| (strsim::jaro_winkler(&self.name, known), known));
        let best = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
        best.filter(|(likeness, _)| *likeness > ALIKE).map(|(_, known)| *known)
    }

    fn suggestion(&self) -> String {
        self.meant().map_or_else(String::new, |known| format!(", did you mean {known:?}?"))
    }
}

/// The one of `all` that has this name.
///
/// # Errors
/// [`UnknownName`] if none has; it suggests the name that is most alike.
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

/// Gives a type that has `ALL` and `name()` its [`Display`](std::fmt::Display) and its
/// [`FromStr`](std::str::FromStr).
///
/// ```
/// #[derive(Debug, Clone, Copy, PartialEq)]
/// enum Tune { High, Low }
///
/// impl Tune {
///     const ALL: [Self; 2] = [Self::High, Self::Low];
///     fn name(self) -> &'static str {
///         match self { Self::High => "high", Self::Low => "low" }
///     }
/// }
/// unisono_collectives::named!(Tune, "tune");
///
/// assert_eq!("low".parse(), Ok(Tune::Low));
/// let error = "hgh".parse::<Tune>().unwrap_err().to_string();
/// assert_eq!(error, "no tune is called \"hgh\", did you mean \"high\"?; there are high, low");
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
}
pub(crate) use named;
