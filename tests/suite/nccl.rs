//! NCCL's bindings and library. None of these tests needs a GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use unisono::Error;
use unisono::nccl::{Library, UniqueId, Version, library};
use unisono_testing::launch;
use unisono_testing::suite::{self, Test};

#[path = "../../src/nccl/bind.rs"]
mod bind;
mod header;

/// The NCCL that `scripts/setup --tests` installs.
const WHEEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/nccl/nvidia/nccl");
const NAME: &str = "libnccl.so.2";
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn tests() -> Vec<Test> {
    let with_wheel = |name: &str, test: fn(&Path)| {
        let no_wheel = || {
            let reason = "no NCCL in target/nccl: `scripts/setup --tests` installs it";
            (!Path::new(WHEEL).join("lib").join(NAME).exists()).then(|| reason.to_owned())
        };
        Test::new(name, move || test(Path::new(WHEEL))).unless(no_wheel)
    };
    vec![
        Test::new("Unisono's header binds every function", header::ours_is_whole),
        Test::new("the comparison of headers detects every kind of difference", header::differences_are_seen),
        with_wheel("Unisono's header agrees with NCCL's", header::ours_is_nccl_s),
        with_wheel("the settings of a communicator begin like NCCL's", header::settings),
        with_wheel("the library is loaded and reports its version", loaded),
        with_wheel("ids are unique", ids),
        with_wheel("result codes have texts", error_texts),
        with_wheel("the environment names the library, its folder, or a virtual environment", named),
        Test::new("a missing library is an error only on use, which names each place", nowhere),
        Test::new("a configured place is the only one tried", named_wrongly),
        Test::new("a file that is not NCCL is refused with the reason", not_nccl),
        Test::new("an old NCCL is refused with each missing function and its version", too_old),
    ]
}

fn open(path: impl Into<PathBuf>) -> unisono::Result<Library> {
    Library::open(&[path.into()])
}

fn refusal(candidates: &[PathBuf]) -> String {
    match Library::open(candidates) {
        Err(Error::Library(text)) => text,
        other => panic!("{other:?} should be an error of the library"),
    }
}

fn wheel_library(wheel: &Path) -> PathBuf {
    wheel.join("lib").join(NAME)
}

fn loaded(wheel: &Path) {
    let path = wheel_library(wheel);
    let library = open(&path).unwrap();
    assert_eq!(library.path(), path.canonicalize().unwrap());
    let version = library.version();
    assert!(version >= Version::new(2, 14, 0), "{version}");
    // The header in the wheel has the same version.
    let header = fs::read_to_string(wheel.join("include/nccl.h")).unwrap();
    for (name, number) in
        [("NCCL_MAJOR", version.major), ("NCCL_MINOR", version.minor), ("NCCL_PATCH", version.patch)]
    {
        assert!(header.contains(&format!("#define {name} {number}\n")), "{name} {number}");
    }
}

fn ids(wheel: &Path) {
    let library = open(wheel_library(wheel)).unwrap();
    let (one, other) = (UniqueId::new(&library).unwrap(), UniqueId::new(&library).unwrap());
    assert_ne!(one, other);
    assert_eq!(UniqueId::from_bytes(*one.as_bytes()), one);
}

fn error_texts(wheel: &Path) {
    let library = open(wheel_library(wheel)).unwrap();
    let texts: Vec<String> = (0..8).map(|code| library.error_text(code)).collect();
    assert_eq!(texts[0], "no error");
    assert!(texts.iter().all(|text| !text.is_empty()), "{texts:?}");
    assert!(texts[4].contains("invalid argument") && texts[5].contains("invalid usage"), "{texts:?}");
}

/// Describes the library that this process finds.
pub(crate) fn play(_role: &str) -> ExitCode {
    // Called twice, since the result is cached.
    for _ in 0..2 {
        match library() {
            Ok(library) => println!("{} {}", library.version(), library.path().display()),
            Err(error) => println!("{error}"),
        }
    }
    ExitCode::SUCCESS
}

/// Returns the description of the library by a process with these variables.
fn describe_library(variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(launch::this_program());
    command.env_remove("UNISONO_NCCL").env_remove("VIRTUAL_ENV");
    suite::play(&mut command, "nccl", "describes its library").envs(variables.iter().copied());
    let output = launch::run(command, DEADLINE).expect_success().stdout;
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{output}");
    lines[0].to_owned()
}

fn named(wheel: &Path) {
    let file = wheel_library(wheel);
    let library = open(&file).unwrap();
    let expected = format!("{} {}", library.version(), library.path().display());
    assert_eq!(describe_library(&[("UNISONO_NCCL", &file)]), expected);
    assert_eq!(describe_library(&[("UNISONO_NCCL", &wheel.join("lib"))]), expected);

    let environment = tempfile::tempdir().unwrap();
    let packages = environment.path().join("lib/python3.12/site-packages");
    fs::create_dir_all(packages.join("nvidia")).unwrap();
    std::os::unix::fs::symlink(wheel, packages.join("nvidia/nccl")).unwrap();
    let found = describe_library(&[("VIRTUAL_ENV", environment.path())]);
    // A system-wide NCCL comes first.
    let of_system = Library::open(&[NAME.into()]).ok();
    let of_system = of_system.map(|library| format!("{} {}", library.version(), library.path().display()));
    assert_eq!(found, of_system.unwrap_or(expected));
}

fn nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join(NAME);
    let text = refusal(&[missing.clone(), "libunisono-has-no-such.so".into()]);
    for expected in
        [&*missing.display().to_string(), "libunisono-has-no-such.so: ", "UNISONO_NCCL", "pip install"]
    {
        assert!(text.contains(expected), "{text:?} should contain {expected:?}");
    }
    assert_eq!(text.matches("No such file").count(), 2, "{text}");
}

fn named_wrongly() {
    let folder = tempfile::tempdir().unwrap();
    let text = describe_library(&[("UNISONO_NCCL", folder.path()), ("VIRTUAL_ENV", folder.path())]);
    let expected = folder.path().join(NAME).display().to_string();
    assert!(text.contains(&expected) && !text.contains("libnccl.so:"), "{text}");
    assert_eq!(text.matches("No such file").count(), 1, "{text}");
}

fn not_nccl() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    fs::write(&file, "no library\n".repeat(100)).unwrap();
    let text = refusal(std::slice::from_ref(&file));
    assert!(text.contains("notes.txt: invalid ELF header"), "{text}");

    let text = refusal(&["libc.so.6".into()]);
    assert!(text.contains("libc.so.6: it is not NCCL: it lacks ncclGetVersion (of NCCL 2.0)"), "{text}");
    assert!(bind::FUNCTIONS.iter().all(|name| text.contains(name)), "{text}");
}

fn too_old() {
    let folder = tempfile::tempdir().unwrap();
    let (source, file) = (folder.path().join("old.c"), folder.path().join(NAME));
    let younger = ["ncclCommInitRankConfig", "ncclCommFinalize", "ncclGetLastError"];
    let mut code = "int ncclGetVersion(int *version) { *version = 21003; return 0; }\n".to_owned();
    for name in bind::FUNCTIONS.iter().filter(|name| !younger.contains(name) && **name != "ncclGetVersion") {
        code.push_str(&format!("int {name}(void) {{ return 5; }}\n"));
    }
    fs::write(&source, code).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&file, &source]);
    launch::run(compiler, DEADLINE).expect_success();
    let text = refusal(&[file]);
    let expected = "it is NCCL 2.10.3: it lacks ncclGetLastError (of NCCL 2.13), ncclCommInitRankConfig (of NCCL \
                    2.14), ncclCommFinalize (of NCCL 2.14)";
    assert!(text.contains(expected), "{text}");
}
