//! The programs of ranks in a simulation: collectives, and point-to-point messages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use unisono_collectives::execution::{Capabilities, CompiledPlan};
use unisono_collectives::program::{self, Instruction, Program};
use unisono_collectives::{Algorithm, Operation, Rank, Topology};

use super::network::Simulated;
use super::schedule::MAX_BYTES;
use super::{Fate, Load, Notice, sleep, with};
use crate::call::Call;
use crate::codes::Codes;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::executor::{Bound, Executor, Task};
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::status::{Guard, StatusBoard};
use crate::transport::tcp::{Stream, Tcp};
use crate::transport::{Calls, Deadlines, FAR_SEGMENT, Fabric, Far, MessageOptions, Messages, Parts};

/// A collective, its programs, and the results that the reference interpreter computes.
#[derive(Debug)]
pub(super) struct Sample {
    call: Call,
    method: Method,
    bound: Vec<Bound>,
    inputs: Vec<Vec<f32>>,
    expected: Vec<Vec<f32>>,
    can_pipeline: bool,
}

impl Sample {
    fn new(algorithm: Algorithm, operation: Operation, nodes: (usize, usize), count: usize) -> Self {
        let (topology, method) = (Topology::uniform(nodes.0, nodes.1), Method::Algorithm(algorithm));
        let call = Call::new(operation, operation.reduces().then_some(ReduceOp::Sum), DType::F32, count);
        let capabilities = Capabilities {
            is_shared: false,
            can_pipeline: true,
            eager_bytes: 0,
            segment_bytes: FAR_SEGMENT,
            accumulates: false,
            by_vendor: false,
        };
        let compile =
            |rank| Arc::new(CompiledPlan::new(algorithm, operation, &topology, rank).expect("it is offered"));
        let compiled: Vec<_> = (0..topology.ranks()).map(compile).collect();
        let programs: Vec<_> = compiled.iter().map(|plan| plan.program(count, 4, &capabilities)).collect();
        let bind = |(program, plan): (&Program, _)| {
            let parts = call.parts(program.chunk_count, None);
            Bound::bind(program, plan, &call, method, (&parts, &parts)).expect("it is bound")
        };
        let bound = programs.iter().zip(&compiled).map(bind).collect();
        let mut random = fastrand::Rng::with_seed(1);
        // Signs and magnitudes differ, so every order of additions rounds differently.
        let mut value = || (random.f32() - 0.5) * 10_f32.powi(random.i32(-3..4));
        let inputs: Vec<Vec<_>> = compiled.iter().map(|_| (0..count).map(|_| value()).collect()).collect();
        let expected =
            program::run(&programs, &inputs, |left, right| left + right).expect("it has no defect");
        let mut instructions = programs.iter().flat_map(|program| &program.instructions);
        let can_pipeline = instructions.any(|(_, instruction)| matches!(instruction, Instruction::Post(..)));
        Self { call, method, bound, inputs, expected, can_pipeline }
    }

    pub(super) fn ranks(&self) -> usize {
        self.bound.len()
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.call.count * size_of::<f32>()
    }

    /// Makes calls on a rank, and checks the results.
    fn run(&self, rank: Rank, calls: usize, transport: &mut Fabric, deadlines: &Deadlines) -> Result<()> {
        let (mut numbers, mut executor) = (Calls::default(), Executor::new(transport.registry()));
        for _ in 0..calls {
            begin_call();
            let header = numbers.next(1, self.call.count, Codes::new(&self.call, self.method), 0);
            let task = Task { header: &header, method: self.method, deadlines };
            let mut buffer = self.inputs[rank].clone();
            executor.run(&self.bound[rank], &task, bytemuck::cast_slice_mut(&mut buffer), transport)?;
            let bits = bytemuck::cast_slice::<f32, u8>;
            assert!(
                bits(&buffer) == bits(&self.expected[rank]),
                "rank {rank}: {} of {:?}",
                self.method,
                self.call
            );
        }
        Ok(())
    }
}

/// Returns the collectives of all seeds.
pub(super) fn samples() -> Vec<Sample> {
    use Algorithm::{
        AllToAll, Butterfly, DoubleTree, MasterWorker, Rail, RecursiveDoubling, Ring, RoundRobin, Tree,
    };
    use Operation::{AllGather, AllReduce, Broadcast, Gather, Reduce, ReduceScatter};
    let samples = vec![
        Sample::new(RecursiveDoubling, AllReduce, (2, 1), 2),
        Sample::new(RecursiveDoubling, AllReduce, (4, 1), 2),
        Sample::new(Ring, AllReduce, (2, 1), 5_000),
        Sample::new(Ring, AllReduce, (3, 1), 3_000),
        Sample::new(Ring, AllGather, (4, 1), 1_000),
        Sample::new(Tree, AllReduce, (3, 1), 2_000),
        Sample::new(DoubleTree, AllReduce, (5, 1), 600),
        Sample::new(Butterfly, AllReduce, (4, 1), 3_000),
        Sample::new(Butterfly, ReduceScatter, (3, 1), 1_000),
        Sample::new(AllToAll, AllReduce, (3, 1), 1_000),
        Sample::new(RoundRobin, Operation::AllToAll, (4, 1), 1_000),
        Sample::new(MasterWorker, Broadcast { root: 1 }, (3, 1), 3_000),
        Sample::new(MasterWorker, Gather { root: 0 }, (3, 1), 3_000),
        Sample::new(Tree, Reduce { root: 1 }, (4, 1), 1_000),
        Sample::new(Rail, AllReduce, (2, 2), 60_000),
        Sample::new(Rail, AllReduce, (3, 2), 40_000),
    ];
    assert!(samples.iter().any(|sample| sample.can_pipeline), "some post exchanges");
    samples
}

/// Begins a rank's call, after a random pause.
fn begin_call() {
    let pause = with(|world| {
        let pause = world.schedule.pause.as_micros() as u64;
        Duration::from_micros(world.random.u64(0..=pause))
    });
    sleep(pause.expect("it is simulated"));
    with(|world| world.began_call[world.own] = world.now);
}

/// A guard that sends notices of failures to the other ranks.
#[derive(Debug)]
struct Notices;

impl Guard for Notices {
    fn check_peers(&self) {}

    fn exchange_now(&self) {}

    fn fail(&self, status: &StatusBoard, first: Rank, cause: &str) {
        with(|world| world.notify(status.rank(), &Notice::Failed { first, cause: cause.to_owned() }));
    }
}

pub(super) fn rank(own: Rank, load: Load, samples: &[Sample]) -> Fate {
    let simulation = with(|world| (world.boards[own].clone(), world.schedule.ranks, world.schedule.timeout));
    let (status, ranks, timeout) = simulation.expect("it is simulated");
    let deadlines = Deadlines { timeout, quiet: timeout };
    let others: Vec<_> = (0..ranks).filter(|&other| other != own).collect();
    let stream = |other| (other != own).then(|| Stream::new(Simulated { own, other }));
    let link = Box::new(Tcp { streams: (0..ranks).map(stream).collect() });
    let mut fabric = Fabric::new(status.clone(), Topology::uniform(ranks, 1), 1, None);
    let guard: Arc<dyn Guard> = Arc::new(Notices);
    if !matches!(load, Load::Collective { .. }) {
        status.set_guard(&guard);
    }
    let done = match load {
        Load::Collective { sample, calls } => {
            fabric.far = Some(Far::new(link, others, status.clone(), 0));
            samples[sample].run(own, calls, &mut fabric, &deadlines).inspect_err(|error| {
                Notices.fail(&status, error.failed_rank().unwrap_or(own), &error.to_string());
            })
        }
        Load::Messages { seed } => {
            fabric.messages = Some(link);
            all_at_once(own, &plan(seed, ranks), &fabric.messages(), deadlines)
        }
        Load::Exchanges { seed } => {
            fabric.messages = Some(link);
            one_by_one(own, ranks, seed, &fabric.messages(), deadlines)
        }
    };
    done.map_or_else(Fate::Failed, |()| Fate::Done)
}

#[derive(Debug, Clone, Copy)]
struct Message {
    number: usize,
    from: Rank,
    to: Rank,
    tag: u32,
    size_bytes: usize,
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        let period: Vec<_> = (0..256).map(|index| (index * 7 + self.number * 31 + self.from) as u8).collect();
        let mut bytes = period.repeat(self.size_bytes.div_ceil(256));
        bytes.truncate(self.size_bytes);
        bytes
    }

    fn options(&self, deadlines: Deadlines) -> MessageOptions {
        MessageOptions {
            tag: self.tag,
            deadlines,
            first_timeout: deadlines.timeout,
            ..MessageOptions::OF_BYTES
        }
    }
}

/// Returns the messages of a seed.
fn plan(seed: u64, ranks: usize) -> Vec<Message> {
    let mut random = fastrand::Rng::with_seed(seed);
    let message = |number| {
        let from = random.usize(0..ranks);
        let to = (from + random.usize(1..ranks)) % ranks;
        let most = [1, 50, 3_000, MAX_BYTES][random.usize(0..4)];
        let size_bytes = random.usize(0..most);
        Message { number, from, to, tag: random.u32(0..3), size_bytes }
    };
    (0..12).map(message).collect()
}

/// Starts all sends and receives of a rank before it waits for them. Messages with the same tag match in order.
fn all_at_once(own: Rank, plan: &[Message], messages: &Messages, deadlines: Deadlines) -> Result<()> {
    begin_call();
    let results = Arc::new(Mutex::new(Vec::new()));
    let mut started = 0;
    let mut start = |message: &Message, sends: bool| {
        let (results, message) = (Arc::clone(&results), *message);
        let buffer = if sends { message.bytes() } else { vec![0; message.size_bytes] };
        let on_end = move |result: Result<(Vec<u8>, _)>| {
            let result = result.map(|(buffer, _)| assert!(buffer == message.bytes(), "{message:?}"));
            results.lock().unwrap().push(result);
        };
        let options = message.options(deadlines);
        let (from, to) = (message.from, message.to);
        if sends {
            messages.begin(
                &options,
                buffer,
                |buffer| Parts { outgoing: Some((&*buffer, to)), incoming: None },
                on_end,
            );
        } else {
            let from = Some(from);
            messages.begin(
                &options,
                buffer,
                |buffer| Parts { outgoing: None, incoming: Some((buffer, from)) },
                on_end,
            );
        }
        started += 1;
    };
    // Receives of higher tags come first, so that their order differs from that of the sends.
    let mut receives: Vec<_> = plan.iter().filter(|message| message.to == own).collect();
    receives.sort_by_key(|message| std::cmp::Reverse(message.tag));
    plan.iter().filter(|message| message.from == own).for_each(|message| start(message, true));
    receives.into_iter().for_each(|message| start(message, false));
    messages.drive_until(Duration::ZERO, Duration::MAX, &|| results.lock().unwrap().len() == started);
    // The first failure ends the others.
    let mut results = std::mem::take(&mut *results.lock().unwrap());
    let first = results
        .iter()
        .position(|result| matches!(result, Err(error) if !matches!(error, Error::Aborted { .. })));
    results.drain(first.unwrap_or(0)..).collect()
}

/// Exchanges messages with the neighbours in a ring, each with blocking calls.
fn one_by_one(own: Rank, ranks: usize, seed: u64, messages: &Messages, deadlines: Deadlines) -> Result<()> {
    let (next, before) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..3 {
        let most = [1, 3_000, MAX_BYTES][random.usize(0..3)];
        let size_bytes = random.usize(0..most);
        begin_call();
        let sent = Message { number, from: own, to: next, tag: number as u32, size_bytes };
        let expected = Message { from: before, to: own, ..sent };
        let (bytes, mut place) = (sent.bytes(), vec![0; size_bytes]);
        let incoming = Some((&mut place[..], Some(before)));
        let from = messages.run(&sent.options(deadlines), Some((&bytes, next)), incoming, true)?;
        assert!(from == Some(before) && place == expected.bytes(), "{expected:?}");
    }
    Ok(())
}
