//! `unisono serve-data`: produces batches for training on other machines.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use unisono_candle::Config;
use unisono_data::{DataError, Source};
use unisono_data_service::{Counts, Server, ServerSettings, Token};

use super::Failure;
use super::family::POLL;
use super::train::{self, DataOptions};
use super::values::size_or_none;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Address to listen on; 0.0.0.0 means all interfaces, port 0 any free port
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// File with the token of the clients, at least 16 characters, not readable by other users
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Number of batches to prepare concurrently [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: Option<u16>,
    /// Cache size in bytes for batches that several jobs request, such as 64M; 0 disables the cache
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = size_or_none)]
    memory_cache: usize,
    /// Address of a server of the same data set to join; its clients then use this server too
    #[arg(long, value_name = "HOST:PORT")]
    join: Option<String>,
    /// Address at which clients reach this server, with --join [default: the address of --listen]
    #[arg(long, value_name = "HOST:PORT", requires = "join")]
    advertise: Option<String>,
    #[command(flatten)]
    dataset: DataOptions,
}

const REPORT_INTERVAL: Duration = Duration::from_secs(60);

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let settings = args.dataset.settings;
    settings.check().map_err(train::failure)?;
    unservable(&settings)?;
    let failed = |error: std::io::Error| Failure::Error(format!("cannot install signal handlers: {error}"));
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let (source, options) = (&settings.data, settings.data_options());
    let refused = |error: DataError| train::failure(error.into());
    let server = ServerSettings {
        listen: args.listen,
        token: Token::read(&args.token_file).map_err(refused)?,
        threads: args.concurrency.map_or_else(cores, usize::from),
        cache_bytes: args.memory_cache,
        join: args.join,
        advertise: args.advertise,
    };
    let (dataset, kept) = settings.kept_dataset().map_err(train::failure)?;
    dataset.notices().iter().for_each(|notice| println!("{notice}"));
    kept.iter().for_each(|report| println!("{report}"));
    // Before this, a signal ends the process immediately.
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, settings.stop.flag()).map_err(failed)?;
    }
    let server = match Server::start(dataset, (source, &options), server) {
        Ok(server) => server,
        Err(DataError::Stopped) => return Ok(()),
        Err(error) => return Err(refused(error)),
    };
    let (train, test) = server.samples();
    if !server.address().ip().is_loopback() {
        eprintln!(
            "unisono: other machines can reach {}, and samples are sent to them unencrypted: use a trusted network, or --listen \
             127.0.0.1:PORT and a tunnel",
            server.address()
        );
    }
    println!("serving {source} ({train} training, {test} held-out samples) on {}", server.address());
    let (mut reported, mut at) = (Counts::default(), Instant::now());
    while !settings.stop.is_asked() {
        thread::sleep(POLL);
        if let Some(problem) = server.take_notice() {
            eprintln!("unisono: {problem}");
        }
        if !server.is_serving() {
            return Err(Failure::Error(format!("the server on {} has ended", server.address())));
        }
        let counts = server.counts();
        if at.elapsed() >= REPORT_INTERVAL && counts != reported {
            println!("{counts}");
            (reported, at) = (counts, Instant::now());
        }
    }
    println!("{}", server.stop());
    Ok(())
}

fn unservable(settings: &Config) -> Result<(), Failure> {
    match &settings.data {
        Source::Service(servers) => Err(Failure::BadInput(format!(
            "serve-data cannot serve the data of `{servers}`: pass the original --data, and --join a server"
        ))),
        Source::Digits => Ok(()),
        _ if settings.seed != 0 => Err(Failure::BadInput(
            "--seed has no effect without --data digits: remove it, or add --data digits".to_owned(),
        )),
        _ => Ok(()),
    }
}
