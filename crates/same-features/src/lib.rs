//! Empty: this package is its manifest.
