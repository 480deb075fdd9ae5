//! The observers of this process, and the export of their counters.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use unisono_collectives::Rank;

use super::Observer;
use super::serve::serve;
use super::timeline::Timeline;
use super::totals::{Totals, text};
use crate::config::{Config, Metrics};
use crate::error::{Error, Result};
use crate::system::{print_line, replace_file};

/// The interval at which files of metrics are written.
const INTERVAL: Duration = Duration::from_secs(2);

static HUB: LazyLock<Mutex<Hub>> = LazyLock::new(Mutex::default);
static TRACES: AtomicBool = AtomicBool::new(false);
/// The number of the next observed world.
static WORLDS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Default)]
struct Hub {
    /// The process that started the export. A forked child exports nothing.
    process: u32,
    metrics: Option<Metrics>,
    trace: Option<PathBuf>,
    live: Vec<Arc<Observer>>,
    /// The sums of communicators that were dropped, by rank.
    past: BTreeMap<Rank, Totals>,
    timelines: BTreeMap<Rank, Arc<Timeline>>,
}

impl Hub {
    /// Adds the counters of dropped communicators to the sums, and frees their observers.
    fn collect_dropped(&mut self) {
        // Only this list still holds them.
        for dropped in self.live.extract_if(.., |observer| Arc::strong_count(observer) == 1) {
            self.past.entry(dropped.rank).or_default().add(&dropped);
        }
    }

    fn totals(&mut self) -> BTreeMap<Rank, Totals> {
        self.collect_dropped();
        let mut totals = self.past.clone();
        self.live.iter().for_each(|observer| totals.entry(observer.rank).or_default().add(observer));
        totals
    }

    /// Returns the files to write, of the ranks that have a communicator.
    fn files(&mut self, with_traces: bool) -> Files {
        self.collect_dropped();
        // In a world that has shrunk, the previous number of this process may be the number of another one, which writes its files. The end of
        // the previous world has written them for this process.
        let ranks: BTreeSet<_> = self.live.iter().map(|observer| observer.rank).collect();
        let metrics = match self.metrics.clone() {
            Some(Metrics::Folder(folder)) => {
                let totals = self.totals().into_iter().filter(|(rank, _)| ranks.contains(rank));
                Some((folder, totals.collect()))
            }
            _ => None,
        };
        let traces = self.trace.clone().filter(|_| with_traces).map(|folder| {
            let timelines = self.timelines.iter().filter(|(rank, _)| ranks.contains(*rank));
            (folder, timelines.map(|(_, timeline)| Arc::clone(timeline)).collect())
        });
        Files { metrics, traces }
    }
}

/// The contents of files, with their folder. They are written without the lock of the hub, since calls wait for that.
#[derive(Debug)]
struct Files {
    metrics: Option<(PathBuf, BTreeMap<Rank, Totals>)>,
    traces: Option<(PathBuf, Vec<Arc<Timeline>>)>,
}

impl Files {
    /// Writes all files. Returns the first error, and the folder.
    fn write(self) -> Result<(), (PathBuf, io::Error)> {
        let mut written = Ok(());
        if let Some((folder, totals)) = self.metrics {
            for (rank, totals) in totals {
                let path = folder.join(format!("unisono-rank-{rank}.prom"));
                let text = text(&BTreeMap::from([(rank, totals)]));
                written = written.and(
                    replace_file(&path, text.as_bytes(), 0o666).map_err(|error| (folder.clone(), error)),
                );
            }
        }
        if let Some((folder, timelines)) = self.traces {
            let all = timelines.iter().map(|timeline| timeline.write(&folder)).fold(Ok(()), Result::and);
            written = written.and(all.map_err(|error| (folder, error)));
        }
        written
    }
}

/// Writes the files of the ranks that have a communicator. The first error is reported.
fn write(with_traces: bool) {
    /// Held during a write, so that no older file replaces a newer one. True once an error was reported.
    static WRITES: Mutex<bool> = Mutex::new(false);
    if hub().process != std::process::id() {
        return;
    }
    let mut has_warned = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    let files = hub().files(with_traces);
    if let Err((folder, error)) = files.write()
        && !std::mem::replace(&mut *has_warned, true)
    {
        print_line(&format!("cannot write metrics or traces to {}: {error}", folder.display()));
    }
}

fn hub() -> MutexGuard<'static, Hub> {
    HUB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the export that the settings enable, unless this process has started one.
pub(super) fn start(config: &Config, local_rank: Rank) -> Result<()> {
    let mut hub = hub();
    if hub.process != std::process::id() {
        *hub = Hub { process: std::process::id(), ..Hub::default() };
    }
    if let Some(metrics) = config.metrics.as_ref().filter(|_| hub.metrics.is_none()) {
        start_metrics(metrics, local_rank)?;
        hub.metrics = Some(metrics.clone());
    }
    if let Some(folder) = config.trace.as_ref().filter(|_| hub.trace.is_none()) {
        make(folder, "UNISONO_TRACE")?;
        hub.trace = Some(folder.clone());
        TRACES.store(true, Ordering::Release);
    }
    Ok(())
}

fn make(folder: &Path, variable: &str) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| {
        let folder = folder.display();
        Error::Setting(format!(
            "the environment variable {variable} is \"{folder}\": cannot create it: {error}"
        ))
    })
}

fn start_metrics(metrics: &Metrics, local_rank: Rank) -> Result<()> {
    let run: Box<dyn FnOnce() + Send> = match metrics {
        Metrics::Folder(folder) => {
            make(folder, "UNISONO_METRICS")?;
            Box::new(|| {
                loop {
                    std::thread::sleep(INTERVAL);
                    write(false);
                }
            })
        }
        Metrics::Http(host, first) => {
            let refused = |why: String| {
                let address = format!("{host}:{first}");
                Error::Setting(format!(
                    "the environment variable UNISONO_METRICS is \"{address}\": local rank {local_rank} cannot \
                     listen there, at the port plus its number: {why}"
                ))
            };
            let port = u16::try_from(usize::from(*first) + local_rank);
            let port = port.map_err(|_| refused("there is no such port".to_owned()))?;
            let bound = TcpListener::bind(format!("{host}:{port}"));
            let listener = bound.map_err(|error| refused(error.to_string()))?;
            Box::new(move || serve(&listener, || text(&hub().totals())))
        }
    };
    let thread = std::thread::Builder::new().name("unisono-metrics".to_owned()).spawn(run);
    thread
        .map(drop)
        .map_err(|cause| Error::Launch(format!("cannot start the thread of UNISONO_METRICS: {cause}")))
}

pub(super) fn is_observed(config: &Config) -> bool {
    config.metrics.is_some() || config.trace.is_some()
}

/// Returns the number of the next world of this process, and counts it if it is observed.
pub(crate) fn next_world(config: &Config) -> u64 {
    WORLDS.fetch_add(u64::from(is_observed(config)), Ordering::Relaxed)
}

/// Returns the name of a world, by the highest number of its processes: a process that joins a world may have had fewer of them. Their next
/// worlds have higher numbers.
pub(super) fn name_of_world(number: u64) -> Arc<str> {
    WORLDS.fetch_max(number + 1, Ordering::Relaxed);
    if number == 0 { "world".into() } else { format!("world {}", number + 1).into() }
}

/// Exports the counters of an observer, even after its communicator is dropped.
pub(super) fn keep(observer: Observer) -> Arc<Observer> {
    let observer = Arc::new(observer);
    let mut hub = hub();
    // A program may create and drop groups without end, and no server may read the counters meanwhile.
    hub.collect_dropped();
    hub.live.push(Arc::clone(&observer));
    observer
}

pub(super) fn timeline(rank: Rank) -> Arc<Timeline> {
    Arc::clone(hub().timelines.entry(rank).or_insert_with(|| Timeline::new(rank)))
}

/// Returns whether this process records a trace. Check it before computing an expensive name.
#[inline]
pub fn is_on() -> bool {
    TRACES.load(Ordering::Relaxed)
}

/// Returns the timeline of the first rank of this process.
pub(super) fn first_timeline() -> Option<Arc<Timeline>> {
    hub().timelines.values().next().cloned()
}

/// Writes all files now, at the end of a world.
pub(crate) fn flush() {
    write(true);
}

/// Writes all files before a process ends after a failure, and waits for at most this long. The file system may hang, and the end of the
/// job must not wait for it.
pub(crate) fn flush_briefly(most: Duration) {
    let (written, is_written) = mpsc::channel();
    let run = move || {
        flush();
        let _ = written.send(());
    };
    // Without a thread, the channel is closed, and nothing is waited for.
    let _ = std::thread::Builder::new().name("unisono-flush".to_owned()).spawn(run);
    let _ = is_written.recv_timeout(most);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::counters::Counters;
    use super::*;

    fn hub_of(folder: &Path) -> Hub {
        let metrics = Some(Metrics::Folder(folder.to_owned()));
        Hub { process: std::process::id(), metrics, ..Hub::default() }
    }

    fn observer(rank: Rank) -> Arc<Observer> {
        let counters = Some(Counters::new(3));
        Arc::new(Observer { rank, name: "world".into(), of_world: None, counters, timeline: None })
    }

    #[test]
    fn world_has_the_name_of_the_process_with_most_worlds() {
        let observed = Config { trace: Some("folder".into()), ..Config::default() };
        let first = next_world(&observed);
        // Another process of the world has observed ten more.
        let of_others = first + 10;
        assert_eq!(*name_of_world(of_others), *format!("world {}", of_others + 1));
        assert_eq!(next_world(&Config::default()), of_others + 1, "it is not observed");
        assert_eq!(next_world(&observed), of_others + 1);
        assert_eq!(next_world(&observed), of_others + 2);
    }

    #[test]
    fn file_of_a_previous_number_is_left_to_the_rank_that_has_it_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = |rank: Rank| folder.path().join(format!("unisono-rank-{rank}.prom"));
        let (mut hub, before) = (hub_of(folder.path()), observer(2));
        hub.live.push(Arc::clone(&before));
        hub.files(false).write().unwrap();
        assert!(file(2).exists());
        // The world shrinks: this process is rank 1 now, and another one is rank 2.
        drop(before);
        let after = observer(1);
        hub.live.push(Arc::clone(&after));
        std::fs::write(file(2), "by another process").unwrap();
        hub.files(false).write().unwrap();
        assert_eq!(std::fs::read_to_string(file(2)).unwrap(), "by another process");
        assert!(file(1).exists());
        assert_eq!(hub.totals().len(), 2, "a server still gets the sums of both");
    }

    #[test]
    fn trace_of_a_previous_number_is_left_to_the_rank_that_has_it_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace-rank-2.json");
        let (timeline, before, now) = (Timeline::new(2), observer(2), Instant::now());
        let mut hub = Hub { trace: Some(folder.path().to_owned()), ..hub_of(folder.path()) };
        hub.timelines.insert(2, Arc::clone(&timeline));
        hub.live.push(Arc::clone(&before));
        timeline.span("step".into(), now, now);
        hub.files(true).write().unwrap();
        assert!(file.exists());
        // The world shrinks. This thread still records spans for its previous number, until its next call.
        drop(before);
        std::fs::write(&file, "by another process").unwrap();
        timeline.span("step".into(), now, now);
        hub.files(true).write().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "by another process");
    }

    #[test]
    fn files_are_written_without_the_hub() {
        let folder = tempfile::tempdir().unwrap();
        let (mut hub, kept) = (hub_of(folder.path()), observer(0));
        hub.live.push(Arc::clone(&kept));
        let files = hub.files(false);
        drop(hub);
        files.write().unwrap();
        assert!(folder.path().join("unisono-rank-0.prom").exists());
    }

    #[test]
    fn end_of_a_job_does_not_wait_for_a_write_that_hangs() {
        let _hangs = hub();
        let (began, most) = (Instant::now(), Duration::from_millis(100));
        flush_briefly(most);
        assert!(began.elapsed() >= most, "it waits for a write that may succeed");
    }

    #[test]
    fn observers_of_dropped_communicators_are_freed() {
        let folder = tempfile::tempdir().unwrap();
        let (mut hub, kept) = (hub_of(folder.path()), observer(0));
        hub.live.extend([observer(0), Arc::clone(&kept), observer(0)]);
        hub.collect_dropped();
        assert_eq!((hub.live.len(), hub.past.len()), (1, 1));
    }
}
