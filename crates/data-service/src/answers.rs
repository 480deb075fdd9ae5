//! A cache of batches that several jobs request, each made once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use prost::Message;
use tokio::sync::OnceCell;
use tonic::Status;

use super::message::{BatchAnswer, BatchRequest};
use unisono_data::pipeline::lock;

/// The most recent answers, in a bounded number of bytes, and the answers in progress.
/// The oldest answer is evicted first: jobs go through an epoch in the same order.
#[derive(Debug)]
pub(super) struct Answers {
    room: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// Answers, including those in progress.
    cells: HashMap<BatchRequest, Arc<Cell>>,
    /// The finished answers with their sizes, in the order in which they were made.
    made: VecDeque<(BatchRequest, usize)>,
    bytes: usize,
}

type Cell = OnceCell<BatchAnswer>;

impl Answers {
    pub(super) fn new(room: usize) -> Self {
        Self { room, entries: Mutex::default() }
    }

    /// Returns the answer to a request: a finished one, the one in progress for an equal request, or a new one from `make`. Also returns whether it
    /// was made for this request.
    pub(super) async fn get<F>(
        &self,
        request: BatchRequest,
        make: impl FnOnce() -> F,
    ) -> Result<(BatchAnswer, bool), Status>
    where
        F: Future<Output = Result<BatchAnswer, Status>>,
    {
        let cell = Arc::clone(lock(&self.entries).cells.entry(request.clone()).or_default());
        let asked = Asked { answers: self, request, cell };
        let mut is_made = false;
        let make = || {
            is_made = true;
            make()
        };
        let answer = asked.cell.get_or_try_init(make).await?.clone();
        if is_made {
            self.keep(&asked.request, &answer);
        }
        Ok((answer, is_made))
    }

    /// Counts an answer that was just made, and evicts the oldest ones that no longer fit. Does not keep one that exceeds the whole memory.
    fn keep(&self, request: &BatchRequest, answer: &BatchAnswer) {
        let bytes = answer.encoded_len() + 2 * request.encoded_len();
        let mut entries = lock(&self.entries);
        if bytes > self.room {
            entries.cells.remove(request);
            return;
        }
        entries.made.push_back((request.clone(), bytes));
        entries.bytes += bytes;
        while entries.bytes > self.room {
            let Some((oldest, bytes)) = entries.made.pop_front() else { break };
            entries.bytes -= bytes;
            entries.cells.remove(&oldest);
        }
    }
}

/// A request that waits for its answer.
struct Asked<'a> {
    answers: &'a Answers,
    request: BatchRequest,
    cell: Arc<Cell>,
}

/// Removes an unfinished answer for which no other request waits.
impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut entries = lock(&self.answers.entries);
        // The references of the map and of this request: no other request waits.
        if self.cell.get().is_none() && Arc::strong_count(&self.cell) == 2 {
            entries.cells.remove(&self.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use unisono_data::Pass;

    fn request(sample: usize) -> BatchRequest {
        BatchRequest::new(1, false, &[sample], Pass::Evaluation)
    }

    fn answer(bytes: usize) -> BatchAnswer {
        BatchAnswer { inputs: None, targets: vec![7; bytes].into() }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn equal_requests_share_one_answer() {
        let (answers, makes) = (Answers::new(1 << 20), AtomicUsize::new(0));
        let make = async || {
            makes.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(answer(10))
        };
        block_on(async {
            let (a, b, c) = tokio::join!(
                answers.get(request(1), make),
                answers.get(request(1), make),
                answers.get(request(2), make)
            );
            assert_eq!((a.unwrap().1, b.unwrap().1, c.unwrap().1), (true, false, true));
            assert!(!answers.get(request(1), make).await.unwrap().1);
        });
        assert_eq!(makes.into_inner(), 2);
    }

    #[test]
    fn failed_and_abandoned_requests_are_made_anew_and_take_no_memory() {
        let answers = Answers::new(1 << 20);
        block_on(async {
            let failed = answers.get(request(1), async || Err(Status::internal("no"))).await;
            assert_eq!(failed.unwrap_err().message(), "no");
            let endless = answers.get(request(2), std::future::pending);
            assert!(tokio::time::timeout(Duration::from_millis(5), endless).await.is_err());
            assert!(lock(&answers.entries).cells.is_empty());
            assert!(answers.get(request(1), async || Ok(answer(1))).await.unwrap().1);
        });
        assert_eq!(lock(&answers.entries).cells.len(), 1);
    }

    #[test]
    fn the_oldest_answers_are_evicted() {
        let answers = Answers::new(2_500);
        block_on(async {
            for (sample, is_made) in
                [(1, true), (2, true), (1, false), (3, true), (2, false), (1, true), (3, false)]
            {
                let (found, made) = answers.get(request(sample), async || Ok(answer(1_000))).await.unwrap();
                assert_eq!((found.targets.len(), made), (1_000, is_made), "{sample}");
            }
        });
    }

    #[test]
    fn an_answer_beyond_the_whole_memory_is_returned_and_evicts_no_other() {
        let answers = Answers::new(2_500);
        block_on(async {
            for (sample, bytes, is_made) in
                [(1, 1_000, true), (2, 3_000, true), (2, 3_000, true), (1, 1_000, false)]
            {
                let (found, made) = answers.get(request(sample), async || Ok(answer(bytes))).await.unwrap();
                assert_eq!((found.targets.len(), made), (bytes, is_made), "{sample}");
            }
        });
        let entries = lock(&answers.entries);
        assert_eq!((entries.cells.len(), entries.made.len()), (1, 1));
    }
}
