//! User interfaces of the cluster: the page in a browser and `miot top` on a terminal, on a machine
//! that is not a node.

use crate::site::{NODES, Site};
use miot_tests::browser::Browser;
use miot_tests::process::until;
use miot_tests::tmux::Terminal;
use miot_tests::trace::PrintedEvent;
use serde_json::Value;

pub(crate) struct Screens {
    browser: Browser,
    terminal: Terminal,
}

impl Screens {
    pub(crate) fn open(site: &Site) -> Screens {
        let mut browser = site.browser();
        browser.open(&format!("{}?window=all#nodes", site.url())).unwrap();
        let terminal = Terminal::new(160, 24);
        terminal.line(&site.top_line());
        let _ = terminal.shows("nodes connected");
        terminal.keys(&["2"]);
        Screens { browser, terminal }
    }

    /// Checks that `count` nodes are shown, and that each but `lost` is healthy.
    pub(crate) fn connected(&mut self, count: usize, lost: Option<&str>) {
        let text = format!("{count} of {} nodes connected", NODES.len());
        self.browser
            .shows(&format!("document.querySelector('#state')?.textContent.includes('{text}') ?? false"));
        for node in NODES {
            let there = if lost == Some(node) { "no" } else { "yes" };
            let cells = format!("document.querySelectorAll('#health tr[data-node={node}] td')");
            self.browser.shows(&format!("[...{cells}].some((cell) => cell.textContent === '{there}')"));
        }
        let _ = self.terminal.shows(&text);
    }

    /// Checks that both show the values of the trace: operations and bytes written of each node.
    pub(crate) fn numbers(&mut self, site: &Site) {
        until("all events are counted", || site.top()["events"] == site.so_far().len());
        let (rows, top) = (site.so_far(), site.top());
        self.browser.shows(&format!("document.querySelector('#events').dataset.value === '{}'", rows.len()));
        for node in NODES {
            let of = |wanted: &dyn Fn(&&PrintedEvent) -> bool| {
                rows.iter().filter(|row| row.node == node).filter(wanted).count()
            };
            // One byte per write. Writes inside an fwrite are the bytes of the fwrite. An
            // optimizing compiler makes fputc of it.
            let written = of(&|row| ["pwrite", "fwrite", "fputc"].contains(&row.op.as_str()));
            let cell = format!("#rows tr[data-name={node}] [data-column=bytes_written]");
            self.browser.shows(&format!("document.querySelector('{cell}')?.dataset.value === '{written}'"));
            let told =
                top["nodes"]["rows"].as_array().unwrap().iter().find(|row| row["name"] == node).unwrap();
            assert_eq!(told["bytes_written"], Value::from(written), "{node}");
            let _ = self.terminal.shows(node);
        }
    }

    /// Checks that the page contacted no other server and had no error.
    pub(crate) fn close(mut self, site: &Site) {
        let url = site.url();
        assert!(self.browser.asked().iter().all(|asked| asked.starts_with(&url) || asked == "about:blank"));
        assert_eq!(self.browser.complaints(), Vec::<String>::new());
        self.terminal.keys(&["q"]);
        let _ = self.terminal.shows("ready>");
    }
}
