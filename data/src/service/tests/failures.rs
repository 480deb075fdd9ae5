//! What goes wrong, and whom it concerns.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Why a data set is not served.
fn refusal(connected: Result<Dataset, DataError>) -> String {
    connected.unwrap_err().to_string()
}

#[test]
fn every_call_needs_the_token() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let right = fixture.service(&[&server]);
    let wrong = Service {
        token_file: Some(fixture.token("other", "0123456789abcdef0123456789abcdeF")),
        ..right.clone()
    };
    let refused = Client::connect(&wrong, Duration::from_secs(1)).unwrap_err().to_string();
    assert_eq!(refused, format!("data server `{}`: the token is not that of the server", server.address()));
    let none = Service { token_file: None, ..right };
    let refused = load(&Source::Service(none), &Options::default()).unwrap_err().to_string();
    assert!(
        refused.contains("ask for a token: name the file that holds it (--data-token-file)"),
        "{refused}"
    );
}

#[test]
fn a_server_of_other_data_is_refused_by_name() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let one = fixture.serve(&source);
    let plain = start(&source, &Options::default(), fixture.settings()).unwrap();
    let refused = refusal(fixture.connect(&[&one, &plain]));
    for part in [one.address().to_string(), plain.address().to_string(), "(options: Options {".to_owned()] {
        assert!(refused.contains(&part), "{refused}");
    }
    let more = fixture.images(9, 30);
    let other = fixture.serve(&more);
    let refused = refusal(fixture.connect(&[&one, &other]));
    assert!(refused.contains("it serves other data than `"), "{refused}");
    // Nor may it join.
    let settings = ServerSettings { join: Some(one.address().to_string()), ..fixture.settings() };
    let refused = start(&more, &varied(), settings).unwrap_err().to_string();
    let expected =
        format!("data server `{}`: cannot join it: it serves other data (kind of samples: ", one.address());
    assert!(refused.starts_with(&expected), "{refused}");
}

#[test]
fn a_server_that_dies_leaves_its_work_to_the_others() {
    let fixture = Fixture::new();
    let source = fixture.images(24, 200);
    let local = load(&source, &varied()).unwrap();
    let (one, mut two) = (fixture.serve(&source), Some(fixture.serve(&source)));
    let served = fixture.connect(&[&one, two.as_ref().unwrap()]).unwrap();
    let kill = |number| {
        if number == 5 {
            drop(two.take());
        }
    };
    assert_eq!(epoch(&served, kill), epoch(&local, |_| ()));
}

#[test]
fn a_server_that_comes_back_is_used_again_and_one_with_other_data_is_not() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let server = fixture.serve(&source);
    let listen = server.address().to_string();
    let served = fixture.connect(&[&server]).unwrap();
    drop(server);
    let refused = served.train.batch(&[0], PASS).unwrap_err().to_string();
    assert!(refused.starts_with(&format!("no data server has answered for 1 s; `{listen}`: ")), "{refused}");

    let restart = |source: &Source| {
        let settings = ServerSettings { listen: listen.clone(), ..fixture.settings() };
        let mut server = None;
        wait_until("the port is free again", || {
            server = start(source, &varied(), settings.clone()).ok();
            server.is_some()
        });
        server.unwrap()
    };
    let server = restart(&source);
    assert_eq!(
        served.train.batch(&[4, 2], PASS).unwrap(),
        load(&source, &varied()).unwrap().train.batch(&[4, 2], PASS).unwrap()
    );
    assert_eq!(server.counts().made, 1);
    drop(server);

    let _other = restart(&Source::Digits);
    let refused = served.train.batch(&[0], PASS).unwrap_err().to_string();
    assert!(refused.contains("it now serves other data"), "{refused}");
}

#[test]
fn damaged_files_are_named_once_no_server_has_others() {
    let fixture = Fixture::new();
    let source = fixture.images(8, 30);
    let (one, two) = (fixture.serve(&source), fixture.serve(&source));
    let served = fixture.connect(&[&one, &two]).unwrap();
    let Source::Images(root) = &source else { unreachable!() };
    fs::write(root.join("a/000.png"), "not an image").unwrap();
    let began = Instant::now();
    let refused = batches(&served, 4, |_| ()).unwrap_err().to_string();
    assert!(refused.contains("data server `127.0.0.1:") && refused.contains("a/000.png`"), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(1), "it is not tried again and again");
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let served = fixture.connect(&[&server]).unwrap();
    let too_many = vec![0; 2_000_000];
    let refused = served.train.batch(&too_many, PASS).unwrap_err().to_string();
    assert!(
        refused.contains("a batch of 2000000 samples takes ") && refused.contains("choose a smaller batch"),
        "{refused}"
    );
    let beyond = catch_unwind(AssertUnwindSafe(|| served.test.batch(&[30], PASS)));
    assert!(beyond.is_err(), "as for samples that are here");
}

#[test]
fn an_address_that_is_taken_or_nobody_s_is_named() {
    let fixture = Fixture::new();
    let server = fixture.serve(&Source::Digits);
    let listen = server.address().to_string();
    let settings = ServerSettings { listen: listen.clone(), ..fixture.settings() };
    let refused = start(&Source::Digits, &varied(), settings).unwrap_err().to_string();
    assert!(refused.starts_with(&format!("data server `{listen}`: cannot listen there: ")), "{refused}");
    let service = Service { servers: vec!["127.0.0.1:1".to_owned()], ..fixture.service(&[]) };
    let refused = Client::connect(&service, Duration::from_millis(300)).unwrap_err().to_string();
    assert!(refused.starts_with("no data server has answered for 0 s; `127.0.0.1:1`: "), "{refused}");
    assert!(refused.contains("refused"), "{refused}");
    let settings = ServerSettings { join: Some("host".to_owned()), ..fixture.settings() };
    let refused = start(&Source::Digits, &varied(), settings).unwrap_err().to_string();
    assert_eq!(refused, "`host` is not the address of a data server: expected HOST:PORT");
}
