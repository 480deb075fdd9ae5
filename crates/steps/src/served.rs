//! Parameter servers: the throughput of workers that pull parameters from servers and push gradients to them.

use unisono_collectives::Topology;
use unisono_collectives::model::Machine;

/// A share of a step, which one worker computes, and the work of the servers for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// The size of all parameters in bytes, which is also the size of their gradients.
    pub parameter_bytes: usize,
    /// The forward pass of a worker, in microseconds.
    pub forward_us: f64,
    /// The backward pass of a worker, in microseconds.
    pub backward_us: f64,
    /// The update of all parameters by one core, in microseconds.
    pub update_us: f64,
}

impl Served {
    /// Returns the time of a synchronous step, in microseconds. All workers pull simultaneously during their forward passes, and push simultaneously
    /// during their backward passes. Then the servers update. The first ranks are the servers.
    ///
    /// ```
    /// use unisono_collectives::Topology;
    /// use unisono_collectives::model::{Link, Machine};
    /// use unisono_steps::Served;
    ///
    /// // Two nodes at 1 Gbit/s; a server and a worker on one of them, and two workers on the other.
    /// let machine = Machine { inter: Link::uniform(50.0, 0.125)?, ..Machine::default() };
    /// let share = Served { parameter_bytes: 7_500_000, forward_us: 3e3, backward_us: 5e3, update_us: 1e3 };
    /// let step_us = share.step_us(&Topology::uniform(2, 2), 1, &machine);
    /// // 15 MB through the server's port to the workers, and as many back, at 125 MB/s.
    /// assert!((step_us - 241e3).abs() < 1e3, "{step_us}");
    /// # Ok::<(), unisono_collectives::model::InvalidLink>(())
    /// ```
    ///
    /// # Panics
    /// If there is no server, or no worker.
    pub fn step_us(&self, topology: &Topology, servers: usize, machine: &Machine) -> f64 {
        let nodes = self.nodes(topology, servers);
        let workers: usize = nodes.iter().map(|node| node.workers).sum();
        // The busier port of a node while all workers of the run pull, which is as busy while they push.
        let port_us = |node: &Node| {
            let out = node.held_bytes * (workers - node.workers);
            let into = (self.parameter_bytes - node.held_bytes) * node.workers;
            machine.inter.occupied_us(out.max(into))
        };
        let busiest_us = nodes.iter().map(port_us).fold(0.0, f64::max);
        // The time in which a server of a node serves the workers on the same node.
        let copies_us = |node: &Node| match node.servers {
            0 => 0.0,
            servers => machine.intra.time_us(node.held_bytes / servers, false) * node.workers as f64,
        };
        let copies_us = nodes.iter().map(copies_us).fold(0.0, f64::max);
        let is_far = nodes.iter().any(|node| node.workers > 0 && node.held_bytes < self.parameter_bytes);
        let latency_us = if is_far { machine.inter.latency_us(self.parameter_bytes) } else { 0.0 };
        let transfer_us = (busiest_us + latency_us).max(copies_us);
        let passes_us = self.forward_us.max(transfer_us) + self.backward_us.max(transfer_us);
        passes_us + self.update_us / servers as f64
    }

    /// Returns the number of shares per microsecond if no worker waits for another. The limits of a worker are its own transfers, the ports that it
    /// shares with others, and the servers' updates.
    ///
    /// # Panics
    /// As [`Served::step_us`].
    pub fn shares_per_us(&self, topology: &Topology, servers: usize, machine: &Machine) -> f64 {
        let nodes = self.nodes(topology, servers);
        let alone = |node: &Node| {
            let far_bytes = self.parameter_bytes - node.held_bytes;
            let near_us =
                if node.held_bytes > 0 { machine.intra.time_us(node.held_bytes, false) } else { 0.0 };
            let far_us = if far_bytes > 0 { machine.inter.time_us(far_bytes, false) } else { 0.0 };
            let transfer_us = near_us + far_us;
            1.0 / (self.forward_us.max(transfer_us) + self.backward_us.max(transfer_us))
        };
        let wished: Vec<f64> = nodes.iter().map(alone).collect();
        let rate = |node: usize| wished[node] * nodes[node].workers as f64;
        // The fraction of the requested rate that a port grants to the workers that share it.
        let granted = |bytes: usize, sharing: &mut dyn Iterator<Item = usize>| {
            let load: f64 = sharing.map(|node| rate(node) * machine.inter.occupied_us(bytes)).sum();
            if load > 1.0 { 1.0 / load } else { 1.0 }
        };
        let out_of = |server: usize| {
            let mut others = (0..nodes.len()).filter(|&other| other != server);
            (server, granted(nodes[server].held_bytes, &mut others))
        };
        // Computed once, since half of many nodes may have servers.
        let with_servers = (0..nodes.len()).filter(|&node| nodes[node].held_bytes > 0);
        let out: Vec<_> = with_servers.map(out_of).collect();
        let shares = |own: usize| {
            let node = &nodes[own];
            let into = granted(self.parameter_bytes - node.held_bytes, &mut std::iter::once(own));
            let far = out.iter().filter(|(server, _)| *server != own);
            rate(own) * far.map(|&(_, granted)| granted).fold(into, f64::min)
        };
        let all: f64 = (0..nodes.len()).map(shares).sum();
        if self.update_us > 0.0 { all.min(servers as f64 / self.update_us) } else { all }
    }

    fn nodes(&self, topology: &Topology, servers: usize) -> Vec<Node> {
        assert!(0 < servers && servers < topology.ranks(), "{servers} of {} ranks serve", topology.ranks());
        let mut counts = vec![[0, 0]; topology.nodes()];
        for rank in 0..topology.ranks() {
            counts[topology.node_of(rank)][usize::from(rank >= servers)] += 1;
        }
        let node = |[own_servers, workers]: [usize; 2]| Node {
            servers: own_servers,
            workers,
            held_bytes: self.parameter_bytes * own_servers / servers,
        };
        counts.into_iter().map(node).collect()
    }
}

/// The servers and workers of a node.
#[derive(Debug, Clone, Copy)]
struct Node {
    servers: usize,
    workers: usize,
    /// The size of the parameters on its servers.
    held_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_collectives::model::Link;

    const SHARE: Served =
        Served { parameter_bytes: 1_000_000, forward_us: 1000.0, backward_us: 2000.0, update_us: 0.0 };

    fn machine(gb_per_s: f64) -> Machine {
        Machine { inter: Link::uniform(0.0, gb_per_s).unwrap(), ..Machine::default() }
    }

    #[test]
    fn network_without_limits_costs_no_time() {
        let (topology, fast) = (Topology::uniform(4, 1), machine(1e6));
        assert!((SHARE.step_us(&topology, 1, &fast) - 3000.0).abs() < 1.0);
        assert!((SHARE.shares_per_us(&topology, 1, &fast) * 3000.0 - 3.0).abs() < 0.01);
    }

    #[test]
    fn workers_share_the_port_of_a_server_and_more_servers_help() {
        // At 0.1 GB/s, the parameters take 10 ms.
        let (topology, slow) = (Topology::uniform(5, 1), machine(0.1));
        let one = SHARE.step_us(&topology, 1, &slow);
        assert!((one - 80_000.0).abs() < 100.0, "four workers pull, and push, one after the other: {one}");
        let two = SHARE.step_us(&topology, 2, &slow);
        assert!((two - 30_000.0).abs() < 100.0, "three workers, each half from each: {two}");
        assert!((SHARE.shares_per_us(&topology, 1, &slow) * 10_000.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn worker_on_its_servers_node_does_not_wait_for_the_network() {
        let (topology, slow) = (Topology::uniform(2, 2), machine(0.01));
        let by_all = SHARE.shares_per_us(&topology, 1, &slow);
        assert!((by_all * 3000.0 - 1.0).abs() < 0.1, "the two others make a share in 100 ms: {by_all}");
    }

    #[test]
    fn half_of_many_nodes_may_serve() {
        // A pass over all pairs of nodes for every node would take an hour.
        let (nodes, servers) = (1 << 13, 1 << 12);
        let by_all = SHARE.shares_per_us(&Topology::uniform(nodes, 1), servers, &machine(1e6));
        assert!((by_all * 3000.0 / servers as f64 - 1.0).abs() < 0.01, "{by_all}");
    }

    #[test]
    fn slow_server_updates_limit_the_throughput() {
        let slow = Served { update_us: 5000.0, ..SHARE };
        let by_all = slow.shares_per_us(&Topology::single_node(5), 1, &machine(1.0));
        assert!((by_all * 5000.0 - 1.0).abs() < 1e-9, "{by_all}");
    }
}
