//! How a communicator gets its lookout.

use super::Communicator;
use crate::config::Config;
use crate::error::Result;
use crate::transport::Transport;
use crate::watchdog::{Card, Cards, Kind, Lookout, Watched};

impl Communicator {
    /// From now on the failure of a rank of this world of threads ends the program, as it ends the processes of a world under
    /// `mpirun`: which rank it was and why is said on standard error, and ranks that do not come to an end in two seconds are
    /// not waited for. The exit code is then 1. Any rank may call it; [`crate::run_threads`] does.
    ///
    /// Without it, a program that has a world of threads for a part of its work learns of a failure by what the ranks
    /// return.
    pub fn end_program_on_failure(&self) {
        if let Some(lookout) = &self.lookout {
            lookout.end_program_on_failure();
        }
    }
}

/// The one lookout of a world of threads.
pub(super) fn over_threads(ends: &mut [Transport], config: &Config) -> Result<Lookout> {
    let rolls: Vec<_> = ends.iter().map(|end| end.roll().clone()).collect();
    let cards = Cards(vec![Card::of_this_process(0); rolls.len()]);
    let warn_after = config.warn;
    let lookout = Lookout::start(Watched { rolls, cards, hub: None, warn_after, kind: Kind::Threads })?;
    ends.iter_mut().zip(lookout.words()).for_each(|(end, words)| end.set_failure_report(words.clone()));
    Ok(lookout)
}

#[cfg(feature = "mpi")]
mod over_processes {
    use unisono_collectives::{Algorithm, Operation};

    use super::{Card, Cards, Communicator, Config, Kind, Lookout, Result, Watched};
    use crate::call::Call;
    use crate::collective::Collective as _;
    use crate::config::Network;
    use crate::dtype::DType;
    use crate::error::Error;
    use crate::select::Choice;
    use crate::system::say;
    use crate::watchdog::Hub;

    impl Communicator {
        /// The lookout of this process. Called by all ranks.
        pub(in crate::communicator) fn look_out(&mut self, config: &Config) -> Result<Lookout> {
            let roll = self.seat.engine().transport.roll().clone();
            let mut card = Card::of_this_process(roll.members()[0]);
            let is_hub = config.lookout && self.rank() == 0 && roll.members().len() < self.ranks();
            let hub = is_hub.then(|| Hub::open(&mut card, &Network::from_environment())).transpose().unwrap_or_else(|error| {
                say(&format!(
                    "unisono: rank 0 cannot listen for the other nodes ({error}): failures there are seen by deadlines \
                     alone\n"
                ));
                None
            });
            let cards = self.gathered(&card)?;
            let warn_after = config.warn;
            let lookout =
                Lookout::start(Watched { rolls: vec![roll], cards, hub, warn_after, kind: Kind::Processes })?;
            self.seat.engine().transport.set_failure_report(lookout.words()[0].clone());
            Ok(lookout)
        }

        /// The cards of all ranks.
        fn gathered(&mut self, card: &Card) -> Result<Cards> {
            let (rank, ranks) = (self.rank(), self.ranks());
            let mut words = vec![0_u64; ranks * Card::WORDS];
            words[rank * Card::WORDS..][..Card::WORDS].copy_from_slice(&card.to_words());
            let call =
                Call { operation: Operation::AllGather, op: None, dtype: DType::U64, count: words.len() };
            // By an algorithm that all know before they know any constants.
            let choice = Choice::Algorithm(Algorithm::Butterfly);
            self.collective(choice)?.run(&call, bytemuck::cast_slice_mut(&mut words))?;
            let cards = words.chunks(Card::WORDS).map(Card::from_words).collect::<Option<_>>();
            let other =
                || Error::Launch("ranks of different versions of unisono are in one world".to_owned());
            cards.map(Cards).ok_or_else(other)
        }
    }
}
