//! Messages with tags, started in different orders on both sides. Their contents identify them.

use unisono::{Communicator, ReduceOp, Request, wait_all, wait_any};

/// Random numbers, identical on every rank for a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }

    /// Shuffles messages. Messages with the same receiver (or sender) and tag keep their order, which determines the matching.
    fn shuffle(&mut self, mut messages: Vec<Message>) -> Vec<Message> {
        let key = |message: &Message| (message.from, message.to, message.tag);
        for place in (1..messages.len()).rev() {
            messages.swap(place, self.below(place + 1));
        }
        let order = messages.clone();
        messages.sort_by_key(|message| message.number);
        let mut shuffled = Vec::new();
        for slot in &order {
            let place = messages.iter().position(|message| key(message) == key(slot));
            shuffled.push(messages.remove(place.expect("as many as before")));
        }
        shuffled
    }
}

#[derive(Debug, Clone, Copy)]
struct Message {
    from: usize,
    to: usize,
    tag: u32,
    count: usize,
    /// Unique among all messages.
    number: usize,
}

impl Message {
    fn values(&self) -> Vec<u32> {
        (0..self.count).map(|index| (self.number * 1_000_003 + index) as u32).collect()
    }

    fn assert_is(&self, received: &[u32]) {
        let expected = self.values();
        let differs = received.iter().zip(&expected).position(|(one, other)| one != other);
        assert!(differs.is_none() && received.len() == self.count, "{self:?} differs at {differs:?}");
    }
}

/// Tests all uses of tags, in a world of two ranks or more.
pub fn conformance(comm: &mut Communicator) {
    both_send_and_then_receive(comm);
    message_is_receivable_after_a_later_collective(comm);
    for seed in 0..4 {
        random_order(comm, seed, 60);
    }
    from_any_by_tag(comm);
    comm.barrier().unwrap();
}

/// Checks that no message waits for another one of the same pair of ranks.
fn both_send_and_then_receive(comm: &mut Communicator) {
    let (rank, other) = (comm.rank(), comm.rank() ^ 1);
    if other >= comm.ranks() {
        return;
    }
    let sent = comm.send_async(vec![rank as u64; 1 << 17], other).unwrap();
    let mut received = vec![99; 1 << 17];
    comm.receive(&mut received, other).unwrap();
    assert!(received.iter().all(|&value| value == other as u64));
    let values = comm.receive_async(received, other).unwrap();
    comm.send(&sent.wait().unwrap(), other).unwrap();
    assert!(values.wait().unwrap().iter().all(|&value| value == other as u64));
}

fn message_is_receivable_after_a_later_collective(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    for count in [1, 1000, 100_000] {
        let later = comm.call().tag(9).receive_async(vec![0_u32; count], previous).unwrap();
        let sent = comm.send_async(vec![rank as u32; count], next).unwrap();
        let mut sum = vec![1.0_f32; count];
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert!(sum.iter().all(|&value| value == ranks as f32));
        let mut received = vec![0_u32; count];
        comm.receive(&mut received, previous).unwrap();
        assert_eq!(received, vec![previous as u32; count]);
        comm.call().tag(9).send(&received, next).unwrap();
        let before = (previous + ranks - 1) % ranks;
        assert_eq!(later.wait().unwrap(), vec![before as u32; count]);
        sent.wait().unwrap();
    }
}

fn messages(random: &mut Random, ranks: usize, count: usize) -> Vec<Message> {
    let message = |number| {
        let from = random.below(ranks);
        let to = (from + 1 + random.below(ranks - 1)) % ranks;
        let count = match random.below(10) {
            0 => 0,
            1..=4 => random.below(20),
            5 | 6 => random.below(1024),
            7 | 8 => random.below(20_000),
            _ => random.below((1 << 18) + 1),
        };
        Message { from, to, tag: random.below(5) as u32, count, number }
    };
    (0..count).map(message).collect()
}

/// Starts sends and receives in random order, blocking and not, with collectives in between.
fn random_order(comm: &mut Communicator, seed: u64, count: usize) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let all = messages(&mut Random(seed), ranks, count);
    let mut random = Random(seed * 1000 + rank as u64);
    let own =
        |own: fn(&Message) -> usize| all.iter().filter(|message| own(message) == rank).copied().collect();
    let sends = random.shuffle(own(|message| message.from));
    let receives = random.shuffle(own(|message| message.to));
    // The last receives block, when all sends have started.
    let blocking = random.below(receives.len() + 1);
    let (early, late) = receives.split_at(receives.len() - blocking);
    let (mut sending, mut receiving) = (Vec::new(), Vec::new());
    let (mut sends, mut early) = (sends.iter(), early.iter());
    for round in 0..count {
        for _ in 0..2 {
            let next = if random.below(2) == 0 { sends.next().map(|send| (send, true)) } else { None };
            match next.or_else(|| early.next().map(|receive| (receive, false))) {
                Some((message, true)) => {
                    let request = comm.call().tag(message.tag).send_async(message.values(), message.to);
                    sending.push(request.unwrap());
                }
                Some((message, false)) => {
                    let place = vec![u32::MAX; message.count];
                    let request = comm.call().tag(message.tag).receive_async(place, message.from);
                    receiving.push((*message, request.unwrap()));
                }
                None => {}
            }
        }
        if round % 7 == 0 {
            let mut sum = [rank as u64 + 1];
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [(ranks * (ranks + 1) / 2) as u64]);
        }
    }
    for message in sends {
        sending.push(comm.call().tag(message.tag).send_async(message.values(), message.to).unwrap());
    }
    for message in early {
        let request = comm.call().tag(message.tag).receive_async(vec![u32::MAX; message.count], message.from);
        receiving.push((*message, request.unwrap()));
    }
    for message in late {
        let mut place = vec![u32::MAX; message.count];
        comm.call().tag(message.tag).receive(&mut place, message.from).unwrap();
        message.assert_is(&place);
    }
    let (expected, mut requests): (Vec<_>, Vec<_>) = receiving.into_iter().unzip();
    let mut left: Vec<Message> = expected;
    while !requests.is_empty() {
        let (index, received) = wait_any(&mut requests);
        left.remove(index).assert_is(&received.unwrap());
    }
    wait_all(sending).unwrap();
    // Now the sends block, and all receives have started.
    let receives: Vec<_> = random.shuffle(own(|message| message.to));
    let place = |comm: &mut Communicator, message: &Message| {
        comm.call().tag(message.tag).receive_async(vec![u32::MAX; message.count], message.from).unwrap()
    };
    let requests: Vec<_> = receives.iter().map(|message| place(comm, message)).collect();
    for message in random.shuffle(own(|message| message.from)) {
        comm.call().tag(message.tag).send(&message.values(), message.to).unwrap();
    }
    let received = wait_all(requests).unwrap();
    receives.iter().zip(&received).for_each(|(message, received)| message.assert_is(received));
}

/// Checks that a receive from any rank gets only messages with its tag.
fn from_any_by_tag(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    if rank > 0 {
        for tag in [1, 2, 3] {
            comm.call().tag(tag).send(&[tag, rank as u32], 0).unwrap();
        }
        return;
    }
    for tag in [3, 1, 2] {
        let mut from = Vec::new();
        for _ in 1..ranks {
            let mut received = [0_u32; 2];
            from.push(comm.call().tag(tag).receive_any(&mut received).unwrap());
            assert_eq!(received, [tag, from[from.len() - 1] as u32]);
        }
        from.sort_unstable();
        assert_eq!(from, (1..ranks).collect::<Vec<_>>());
    }
}

/// Tests this many messages in flight to and from each rank, received in the opposite order.
pub fn many_in_flight(comm: &mut Communicator, count: usize) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let of = |from: usize, to: usize| {
        (0..count).map(move |number| {
            let size = [1, 40, 700, 3000][(number + from) % 4];
            let number = (from * ranks + to) * count + number;
            Message { from, to, tag: number as u32, count: size, number }
        })
    };
    let others = || (0..ranks).filter(move |&other| other != rank);
    let sends: Vec<_> = others().flat_map(|other| of(rank, other)).collect();
    let receives: Vec<_> = others().flat_map(|other| of(other, rank)).collect();
    let mut send =
        |message: &Message| comm.call().tag(message.tag).send_async(message.values(), message.to).unwrap();
    let sending: Vec<Request<Vec<u32>>> = sends.iter().map(&mut send).collect();
    let mut receive = |message: &Message| {
        comm.call().tag(message.tag).receive_async(vec![u32::MAX; message.count], message.from).unwrap()
    };
    let receiving: Vec<_> = receives.iter().rev().map(&mut receive).collect();
    assert!(sending.len() >= count && receiving.len() >= count);
    let received = wait_all(receiving).unwrap();
    receives.iter().rev().zip(&received).for_each(|(message, received)| message.assert_is(received));
    wait_all(sending).unwrap();
    comm.barrier().unwrap();
}
