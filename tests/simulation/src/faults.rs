//! What happens to log-servers, network and nodes.

use crate::figures::Outage;
use crate::network::is_chosen;
use crate::plan::Fault;
use crate::spool::Link;
use crate::world::{Event, World};
use crate::{SECOND, Time};
use miot_log_client::testing::cluster::{ConnectionWaits, ServerChoice};
use std::time::Duration;

/// All log-clients restart within this time.
const RECONFIGURE_WITHIN: Time = 3 * SECOND;

fn nanoseconds(time: Duration) -> Time {
    time.as_nanos() as Time
}

impl World {
    pub(crate) fn fault(&mut self, number: usize) {
        match self.plan.faults[number].1.clone() {
            Fault::Restart { servers, away } => self.restart(&servers, nanoseconds(away)),
            Fault::Gone { server } => self.kill(server, true, None),
            Fault::Partition { one_in, servers, lasts } => {
                let until = self.now + nanoseconds(lasts);
                self.network.cut(one_in, servers.clone(), until);
                for node in 0..self.nodes.len() {
                    let is_cut = |server: &usize| self.network.cut_until(node, *server, self.now).is_some();
                    if servers.iter().any(is_cut) {
                        self.nodes[node].may_be_late = true;
                    }
                }
            }
            Fault::StopLogClients { one_in, lasts } => {
                for node in self.chosen(one_in) {
                    (self.nodes[node].is_stopped, self.nodes[node].may_be_late) = (true, true);
                    self.after(nanoseconds(lasts), Event::ContinueLogClient(node));
                }
            }
            Fault::StopThreads { one_in, lasts } => {
                for node in self.chosen(one_in) {
                    self.nodes[node].stop_thread(self.now);
                    self.after(nanoseconds(lasts), Event::ContinueThread(node));
                }
            }
            Fault::AddServer => {
                // One that was removed still runs.
                let Some(server) = self.servers.iter().position(|server| server.life == 0) else { return };
                self.start(server);
                self.members.push(server);
                self.change_set(|order, _| order.first() == Some(&server));
            }
            Fault::RemoveServer { server } => {
                self.members.retain(|member| *member != server);
                self.change_set(|_, before| before == Some(server));
            }
        }
    }

    fn chosen(&mut self, one_in: u64) -> Vec<usize> {
        let salt = self.random.u64(..);
        (0..self.nodes.len()).filter(|node| is_chosen(*node, salt, one_in)).collect()
    }

    fn restart(&mut self, servers: &[usize], away: Time) {
        let outage = self.figures.outages.len();
        self.figures.outages.push(Outage {
            servers: servers.len(),
            killed: self.now,
            started: self.now + away,
            nodes: 0,
            missing: 0,
            back: None,
        });
        for server in
            servers.iter().copied().filter(|server| self.servers[*server].is_up()).collect::<Vec<_>>()
        {
            self.kill(server, false, Some(outage));
            self.after(away, Event::Start { server });
        }
    }

    /// Kills a log-server. The nodes notice that their connections have ended.
    fn kill(&mut self, server: usize, is_gone: bool, outage: Option<usize>) {
        for end in self.servers[server].kill(is_gone) {
            let node = &mut self.nodes[end.node];
            let is_current = node.spools.last().is_some_and(|spool| spool.number == end.spool);
            let is_up = node
                .spool(end.spool)
                .is_some_and(|spool| spool.attempt == end.attempt && matches!(spool.link, Link::Up(_)));
            if let Some(number) = outage.filter(|_| is_current && is_up) {
                self.nodes[end.node].outage = Some(number);
                let outage = &mut self.figures.outages[number];
                (outage.nodes, outage.missing) = (outage.nodes + 1, outage.missing + 1);
            }
            // A machine that is gone sends nothing. Only `dead_after` ends the connection.
            if !is_gone && self.network.cut_until(end.node, server, self.now).is_none() {
                let delay = self.network.delay();
                self.after(delay, Event::Broken { node: end.node, spool: end.spool, attempt: end.attempt });
            }
        }
    }

    /// Changes the configuration of all nodes. `had_to`: from the new order of a node and the
    /// log-server that it preferred, whether its preferred log-server had to change.
    fn change_set(&mut self, had_to: impl Fn(&[usize], Option<usize>) -> bool) {
        let (mut moved, mut due) = (0, 0);
        for node in 0..self.nodes.len() {
            let order = self.order_of(node);
            let before = self.nodes[node].order.first().copied();
            moved += usize::from(order.first().copied() != before);
            due += usize::from(had_to(&order, before));
            self.nodes[node].next_order = order;
            let wait = self.random.u64(..RECONFIGURE_WITHIN);
            self.after(wait, Event::Reconfigure(node));
        }
        self.figures.moved.push((moved, due));
    }

    /// Restarts a log-client with another configuration. It continues with the spools that are
    /// there.
    pub(crate) fn reconfigure(&mut self, number: usize) {
        let instant = self.instant();
        let node = &mut self.nodes[number];
        if node.has_ended {
            return;
        }
        if node.is_stopped {
            return self.after(SECOND, Event::Reconfigure(number));
        }
        node.order = node.next_order.clone();
        node.choice = ServerChoice::new(self.plan.fail_over_after, instant);
        node.may_be_late = true;
        let spools: Vec<u32> = node.spools.iter().map(|spool| spool.number).collect();
        for spool in spools {
            self.close(number, spool);
            if let Some(spool) = self.nodes[number].spool(spool) {
                spool.waits = ConnectionWaits::new(spool.session);
            }
            self.attempt(number, spool, 0);
        }
    }
}
