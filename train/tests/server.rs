//! Parameter servers, over threads.

use unisono::{Algorithm, Communicator};
use unisono_data::Source;
use unisono_train::model::ModelKind;
use unisono_train::{Event, ServerSettings, Settings, Staleness, Summary, TrainError, WorkersReport};

const SYNCHRONOUS: ServerSettings =
    ServerSettings { servers: 1, staleness: Staleness::Steps(0), damps: false };

fn settings() -> Settings {
    Settings { epochs: 1, hidden: Some(vec![32]), ..Settings::new(Source::Digits, ModelKind::Mlp) }
}

/// The summary of a run with parameter servers, and what the workers did.
fn serve(
    ranks: usize,
    settings: &Settings,
    servers: ServerSettings,
) -> Result<(Summary, Vec<WorkersReport>), TrainError> {
    let on_rank = |mut comm: Communicator| -> Result<_, TrainError> {
        let mut workers = Vec::new();
        let run = settings.parameter_server(&mut comm, servers)?;
        let summary = run.run(|event| {
            if let Event::Workers(report) = event {
                workers.push(report);
            }
        })?;
        Ok(summary.map(|summary| (summary, workers)))
    };
    let ended: Result<Vec<_>, _> = unisono::threads(ranks, on_rank).into_iter().collect();
    Ok(ended?.into_iter().flatten().next().expect("rank 0 has a summary"))
}

/// The same by mirrored training.
fn mirror(ranks: usize, settings: &Settings) -> Summary {
    let on_rank = |mut comm: Communicator| {
        comm.set_choice(Algorithm::MasterWorker).unwrap();
        settings.trainer(&mut comm).unwrap().run(|_| ()).unwrap()
    };
    unisono::threads(ranks, on_rank).swap_remove(0)
}

#[test]
fn without_staleness_the_bits_are_those_of_master_worker() {
    for (workers, servers) in [(1, 1), (2, 1), (3, 2)] {
        let mirrored = mirror(workers, &settings());
        let servers = ServerSettings { servers, ..SYNCHRONOUS };
        let (served, _) = serve(workers + servers.servers, &settings(), servers).unwrap();
        assert_eq!(served.parameters_hash, mirrored.parameters_hash, "{workers} workers");
        assert_eq!(served.last.test_loss, mirrored.last.test_loss);
        assert!((served.last.loss - mirrored.last.loss).abs() < 1e-6);
    }
}

#[test]
fn stale_gradients_train_and_none_misses_more_than_it_may() {
    eprintln!("mirrored {}", mirror(3, &Settings { epochs: 2, ..settings() }).last.test_accuracy);
    for (staleness, most) in
        [(Staleness::Steps(1), 3), (Staleness::Steps(8), 24), (Staleness::Unbounded, u64::MAX)]
    {
        for damps in [false, true] {
            let servers = ServerSettings { servers: 2, staleness, damps };
            let (summary, workers) = serve(5, &Settings { epochs: 2, ..settings() }, servers).unwrap();
            eprintln!("{staleness} {damps} {} {:?}", summary.last.test_accuracy, workers[1]);
            assert!(summary.last.test_accuracy > 0.8, "{staleness}: {}", summary.last.test_accuracy);
            let missed: Vec<u64> =
                workers.iter().flat_map(|report| report.staleness.keys().copied()).collect();
            assert!(missed.iter().all(|&missed| missed <= most), "{staleness}: {missed:?}");
            let shares: u64 = workers[1].workers.iter().map(|worker| worker.shares).sum();
            assert_eq!(shares, 3 * settings_steps(3));
        }
    }
}

/// The steps of an epoch with so many workers.
fn settings_steps(workers: usize) -> u64 {
    20_000_u64.div_ceil((settings().batch_size * workers) as u64)
}
