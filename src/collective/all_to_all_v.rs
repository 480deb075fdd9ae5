//! An all-to-all with a count for every pair of ranks.

use unisono_collectives::Chunks;
use unisono_collectives::partition::Partition;

use super::{Engine, Options};
use crate::call::{Call, Ran};
use crate::codes::Codes;
use crate::error::Result;
use crate::executor::{Bound, Task};
use crate::kernels;
use crate::method::Method;
use crate::record::COUNTS_OF_PAIRS;
use crate::select::Choice;

impl Engine {
    /// Sends part `j` of `sent` to each rank `j`, and stores the part from each rank `i` as part `i` of `received`. `call` has
    /// 0 elements, since ranks do not know each other's counts. A rank that receives an unexpected number of bytes reports an error.
    pub(crate) fn all_to_all_v(
        &mut self,
        choice: &Choice,
        options: &Options,
        call: &Call,
        (sent, sent_parts): (&[u8], &Partition),
        (received, received_parts): (&mut [u8], &Partition),
    ) -> Result<Ran> {
        self.begin()?;
        let (selection, compiled) = self.look_up(choice, call);
        let method = Method::Algorithm(selection.algorithm);
        let bound = Bound::between(&compiled, call, method, (sent_parts, received_parts));
        let own = Chunks::one(self.transport.rank());
        let [from, to] = [sent_parts, received_parts].map(|parts| call.bytes_of(parts.elements(own)));
        kernels::copy(&mut received[to], &sent[from]);

        let Self { transport, status, limits, executor, agreement, calls, is_in_call, .. } = self;
        let header = calls.next(1, COUNTS_OF_PAIRS as usize, Codes::new(call, method), options.label);
        let deadlines = &options.deadlines(limits.of(header.sequence()));
        let recording = header.note(status, sent.len() + received.len());
        let task = Task { header: &header, method, agreement, deadlines };
        *is_in_call = true;
        let done = executor.run_between(&bound, &task, (sent, received), transport);
        *is_in_call = false;
        recording.end(done.is_ok());
        let ran = Ran { method, why: selection.why, link: method.link(transport.name()) };
        self.settle(done.map(|()| ran))
    }
}
