//! Deadlines of waits.

use super::*;

/// Returns the length of a wait in which only `on_check` changes the status. It is called after each reading of the clock, with a time that
/// has certainly passed since the first reading, even if the thread was descheduled.
fn waited(deadlines: Deadlines, status: &StatusBoard, mut on_check: impl FnMut(Duration)) -> Duration {
    let (started, mut first_check) = (Instant::now(), None);
    let mut waiting = Waiting::new(10, &deadlines, status);
    loop {
        let before = Instant::now();
        match waiting.pause() {
            Ok(true) => {
                let first = *first_check.get_or_insert_with(Instant::now);
                on_check(before.saturating_duration_since(first));
            }
            Ok(false) => {}
            Err(WaitFailure::Overdue(waited)) => {
                assert!(started.elapsed() >= waited);
                return waited;
            }
            Err(WaitFailure::Failed(error)) => panic!("{error}"),
        }
    }
}

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_millis(300);

#[test]
fn wait_ends_after_its_deadline() {
    let status = StatusBoard::of_one();
    let waited = waited(Deadlines { timeout: SHORT, quiet: LONG }, &status, |_| {});
    assert!(waited > SHORT);
}

#[test]
fn quiet_section_has_its_own_deadline() {
    let status = StatusBoard::of_one();
    status.begin_quiet("validation");
    assert!(waited(Deadlines { timeout: SHORT, quiet: LONG }, &status, |_| {}) > LONG);
}

#[test]
fn deadline_restarts_after_a_quiet_section() {
    let status = StatusBoard::of_one();
    status.begin_quiet("validation");
    let mut is_quiet = true;
    let waited = waited(Deadlines { timeout: 2 * SHORT, quiet: 10 * LONG }, &status, |passed| {
        if is_quiet && passed > LONG {
            status.end_quiet();
            is_quiet = false;
        }
    });
    assert!(waited > LONG + 2 * SHORT, "{waited:?}");
}

#[test]
fn suspension_of_this_process_is_not_silence() {
    let (began, hour, timeout) = (Instant::now(), Duration::from_secs(3600), 3 * LONGEST_GAP);
    let deadlines = Deadlines { timeout, quiet: timeout };
    let mut silence = Silence::since(began);
    let mut read =
        |after: Duration| (silence.lasts(began + after, false), silence.is_over(began + after, deadlines));
    assert_eq!(read(LONGEST_GAP), (LONGEST_GAP, false));
    assert_eq!(read(hour), (2 * LONGEST_GAP, false));
    assert_eq!(read(hour + LONGEST_GAP), (timeout, false));
    assert_eq!(read(hour + 2 * LONGEST_GAP), (timeout + LONGEST_GAP, true));
}

#[test]
fn only_progress_renews_the_deadline() {
    let (status, timeout) = (StatusBoard::of_one(), LONG);
    let deadlines = Deadlines { timeout, quiet: timeout };
    let (began, mut moved) = (Instant::now(), Instant::now());
    let arrives_until = 4 * timeout;
    let ended = Waiting::new(10, &deadlines, &status).until(
        || {
            if began.elapsed() < arrives_until && moved.elapsed() > SHORT {
                moved = Instant::now();
                return Ok(Poll::<()>::Progress);
            }
            Ok(Poll::WaitsFor(1))
        },
        |_, _| Ok(()),
    );
    let Err(Failure::Timeout { other: 1, waited }) = ended else { panic!("{ended:?}") };
    assert!(began.elapsed() > arrives_until, "it waits while data arrive: {:?}", began.elapsed());
    assert!(waited > timeout && waited <= moved.elapsed(), "it reports the silence: {waited:?}");
}

#[test]
fn departure_of_the_awaited_rank_is_named_at_the_deadline() {
    let (status, deadlines) = (StatusBoard::of_one(), Deadlines { timeout: SHORT, quiet: SHORT });
    let ended = Waiting::new(10, &deadlines, &status).until(
        || Ok(Poll::<()>::WaitsFor(1)),
        |other, waiting| {
            let is_over = waiting.silence() > SHORT;
            if is_over { Err(Failure::Left { other }) } else { Ok(()) }
        },
    );
    assert!(matches!(ended, Err(Failure::Left { other: 1 })), "{ended:?}");
}
