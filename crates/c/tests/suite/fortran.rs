//! Generates `fortran/unisono.f90` from `include/unisono.h`, and compares it.

use expect_test::expect_file;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// The longest line of a Fortran program.
const LINE: usize = 132;

const BEGIN: &str = "\
! Unisono for Fortran, the functions of unisono.h.
! UPDATE_EXPECT=1 cargo test -p unisono-c --test suite fortran writes it from there.
!
! Compile it with the program, since the format of compiled modules depends on the compiler:
!   mpif90 $(pkg-config --variable=prefix unisono)/share/unisono/unisono.f90 program.f90 $(pkg-config --libs unisono)
!
! Handles and arrays are of type(c_ptr): c_loc(values) for an array with the attribute `target`, c_null_ptr for NULL, c_loc(options)
! for options and settings, and c_loc(text) for a text that ends with c_null_char. A function of the program with bind(c) is
! c_funloc(function). Ranks, the starts of parts and the index of unisono_wait_any count from 0: requests(index + 1) was done.
module unisono
  use, intrinsic :: iso_c_binding
  implicit none
  public
";

const END: &str = "  end interface
contains
  ! The text of `unisono_last_error`.
  function unisono_error_text() result(text)
    character(:), allocatable :: text
    character(c_char), pointer :: letters(:)
    type(c_ptr) :: last
    integer :: place
    interface
      integer(c_size_t) function strlen(string) bind(c)
        import
        type(c_ptr), value :: string
      end function
    end interface

    last = unisono_last_error()
    call c_f_pointer(last, letters, [strlen(last)])
    allocate (character(size(letters)) :: text)
    do place = 1, size(letters)
      text(place:place) = letters(place)
    end do
  end function
end module
";

/// Compares the module. `UPDATE_EXPECT=1 cargo test -p unisono-c --test suite fortran` rewrites it.
fn module_matches_the_header() {
    expect_file!["../../fortran/unisono.f90"].assert_eq(&module(include_str!("../../include/unisono.h")));
}

fn module(header: &str) -> String {
    let (mut constants, mut types, mut callbacks, mut functions) =
        <(String, String, String, String)>::default();
    // cbindgen separates declarations by empty lines.
    for declaration in header.split("\n\n") {
        let (comment, code): (Vec<_>, Vec<_>) = declaration.lines().partition(|line| line.starts_with("//"));
        let text = code.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        match text.split_once('(') {
            _ if text.starts_with("#define UNISONO_") && text.split(' ').count() == 3 => {
                constants += &(comments(&comment, "  ") + &constant(&text));
            }
            _ if text.starts_with("typedef struct {") => {
                types += &format!("{}{}\n", comments(&comment, "  "), structure(&code));
            }
            Some((result, rest)) if text.starts_with("typedef ") && rest.starts_with('*') => {
                let result = result.trim_start_matches("typedef ").trim();
                let (name, arguments) = rest[1..].split_once(")(").expect("a pointer to a function");
                callbacks += &(comments(&comment, "    ") + &function(result, name, arguments, "inout"));
            }
            Some((result, arguments)) if text.ends_with(';') && !text.starts_with(['#', '/']) => {
                let place = result.find("unisono_").expect("all functions have the prefix unisono_");
                let (result, name) = result.split_at(place);
                functions += &(comments(&comment, "    ") + &function(result.trim(), name, arguments, "out"));
            }
            _ => {}
        }
    }
    let (callbacks, functions) = (callbacks.trim_end(), functions.trim_end());
    let module = format!(
        "{BEGIN}\n{constants}\n{types}  abstract interface\n{callbacks}\n  end interface\n\n  interface\n{functions}\n{END}"
    );
    let long = module.lines().find(|line| line.len() > LINE);
    assert_eq!(long, None, "longer than {LINE}");
    module
}

fn constant(define: &str) -> String {
    let [_, name, value] = define.split(' ').collect::<Vec<_>>()[..] else {
        panic!("`{define}` has three words")
    };
    format!("  integer(c_int), parameter :: {} = {value}\n", name.to_lowercase())
}

/// Returns a type whose components are 0 or NULL unless a program sets them.
fn structure(code: &[&str]) -> String {
    let (mut name, mut fields) = ("", String::new());
    for line in &code[1..] {
        match line.trim().trim_end_matches(';').rsplit_once([' ', '*']) {
            _ if line.trim().starts_with("//") => fields += &comments(&[line.trim()], "    "),
            Some(("}", end)) => name = end,
            Some((of, field)) => {
                let (of, initial) = match of.trim() {
                    "const char" | "const size_t" => ("type(c_ptr)", "c_null_ptr"),
                    "double" => ("real(c_double)", "0"),
                    "int" => ("integer(c_int)", "0"),
                    other => panic!("Fortran has no `{other}` yet"),
                };
                fields += &format!("    {of} :: {field} = {initial}\n");
            }
            None => panic!("`{line}` is no component"),
        }
    }
    format!("  type, bind(c) :: {name}\n{fields}  end type\n")
}

/// Returns an interface. `pointed` is the intent of numbers behind pointers.
fn function(result: &str, name: &str, arguments: &str, pointed: &str) -> String {
    let arguments = arguments.trim_end_matches(';').trim_end_matches(')');
    let arguments: Vec<_> = arguments.split(", ").filter(|argument| *argument != "void").collect();
    let arguments: Vec<_> = arguments.iter().map(|argument| split(argument)).collect();
    let names = arguments.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    let (result, kind) = match result {
        "int" => ("integer(c_int) function", "function"),
        "size_t" => ("integer(c_size_t) function", "function"),
        "void" => ("subroutine", "subroutine"),
        "void *" | "const char *" => ("type(c_ptr) function", "function"),
        other => panic!("Fortran has no `{other}` yet"),
    };
    let mut head = format!("    {result} {name}({names}) bind(c)");
    if head.len() > LINE {
        head = format!("    {result} {name}( &\n      {names}) bind(c)");
    }
    let mut text = format!("{head}\n      import\n");
    for (of, argument) in arguments {
        let of = match of {
            "int" => "integer(c_int), value".to_owned(),
            "size_t" => "integer(c_size_t), value".to_owned(),
            "double" => "real(c_double), value".to_owned(),
            "const int *" => "integer(c_int), intent(in)".to_owned(),
            "const size_t *" => "integer(c_size_t), intent(in)".to_owned(),
            // A call in flight writes it after the function has returned.
            "int *" if name.ends_with("_async") => "integer(c_int), intent(inout), asynchronous".to_owned(),
            "int *" => format!("integer(c_int), intent({pointed})"),
            "size_t *" => format!("integer(c_size_t), intent({pointed})"),
            "unisono_request **" if name.starts_with("unisono_wait") => {
                "type(c_ptr), intent(inout)".to_owned()
            }
            "unisono_comm **" if name == "unisono_shrink" => "type(c_ptr), intent(inout)".to_owned(),
            _ if of.ends_with("_function") => "type(c_funptr), value".to_owned(),
            _ if of.ends_with("**") => "type(c_ptr), intent(out)".to_owned(),
            _ if of.ends_with('*') => "type(c_ptr), value".to_owned(),
            other => panic!("Fortran has no `{other}` yet"),
        };
        let lists = ["comms", "ranks", "rows", "columns", "requests", "sent_counts", "received_counts"];
        let list = if lists.contains(&argument) && of.contains("intent") { "(*)" } else { "" };
        text += &format!("      {of} :: {argument}{list}\n");
    }
    format!("{text}    end {kind}\n\n")
}

/// Returns the type of an argument, and its name.
fn split(argument: &str) -> (&str, &str) {
    let name = argument.rfind([' ', '*']).expect("an argument has a type") + 1;
    (argument[..name].trim(), &argument[name..])
}

/// Returns the comment, with its paragraphs wrapped to the line length.
fn comments(lines: &[&str], indent: &str) -> String {
    let start = format!("{indent}!");
    let mut text: Vec<String> = Vec::new();
    let mut continues = false;
    for line in lines {
        let line = line.trim_start_matches('/');
        let stands_alone = line.trim().is_empty() || line.starts_with("  ");
        if stands_alone || !continues {
            text.push(start.clone());
        }
        for word in line.split(' ').skip(1) {
            let last = text.last_mut().expect("a line was started");
            if last.len() + 1 + word.len() > LINE {
                text.push(format!("{start} {word}"));
            } else {
                *last += &format!(" {word}");
            }
        }
        continues = !stands_alone && !line.ends_with(':');
    }
    text.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

pub(crate) fn tests() -> Vec<Test> {
    tests![module_matches_the_header,]
}
