//! `unisono train --elastic`: lost workers are started again.

use unisono::config::{Launcher, Starter, bootstrap_folder, joins};
use unisono_candle::Config;
use unisono_strategies::Strategy;

use super::{Args, Failure, failure, on_rank};
use crate::{is_reporter, refused};

/// Runs this rank, which may have been restarted during the run.
pub(super) fn run(args: &Args, settings: &Config) -> Result<(), Failure> {
    if let Err(error) = settings.check() {
        return Err(Failure::refusal(is_reporter(), error));
    }
    let launcher = Launcher::detect();
    let place = launcher.rank.zip(launcher.ranks).filter(|_| launcher.starter == Some(Starter::Variables));
    let (Some((rank, ranks)), Some(folder)) = (place, bootstrap_folder()) else {
        return Err(refused(
            "--elastic needs a launcher that does not end the job with one of its ranks: use unisono launch --elastic -n N -- unisono \
             train --strategy parameter-server --elastic"
                .to_owned(),
        ));
    };
    match settings.strategy() {
        Some(Strategy::ParameterServer(servers)) if joins() => {
            settings.join_parameter_server(&folder, (rank, ranks), servers).map_err(failure)
        }
        _ => args.world.run_elastic(|comm| on_rank(comm, args, Some(&folder))),
    }
}
