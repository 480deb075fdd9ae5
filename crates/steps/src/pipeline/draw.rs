//! Drawings of pipeline plans.

use std::fmt::Write as _;

use super::{PassCosts, PipelinePlan};

const COSTS: PassCosts = PassCosts { forward: 1.0, backward: 2.0, message: 0.0 };

impl PipelinePlan {
    /// Returns a drawing of the timeline of each rank. A backward pass takes twice as long as a forward pass, and messages take no time.
    pub fn draw(&self) -> String {
        let timeline = self.timeline(&COSTS);
        let (ranks, stages, micro_batches) = (self.ranks.len(), self.stages(), self.micro_batches);
        let title = format!(
            "{}: {micro_batches} micro-batches through {stages} stages on {ranks} ranks",
            self.schedule
        );
        let kept = (0..ranks).map(|rank| self.schedule.most_kept(rank, ranks, micro_batches));
        let kept = kept.map(|most| most.to_string()).collect::<Vec<_>>().join(", ");
        let mut text = format!("{title}\n{}\n", "─".repeat(title.chars().count()));
        let _ = writeln!(
            text,
            "{:.1} % of the time ranks wait; they keep {kept} activations\n",
            100.0 * timeline.bubble()
        );
        let own_stages = self.schedule.stages_per_rank();
        let name = |micro_batch: usize, own_stage: usize| match own_stages {
            1 => micro_batch.to_string(),
            // After z, letters repeat.
            _ => format!("{micro_batch}{}", char::from(b'a' + (own_stage % 26) as u8)),
        };
        let width = name(micro_batches - 1, own_stages - 1).len() + 2;
        for (rank, spans) in timeline.ranks.iter().enumerate() {
            let _ = write!(text, "rank {rank:<3}");
            let mut at = 0.0;
            for span in spans {
                let waited = ((span.begins - at) / COSTS.forward).round() as usize;
                let cells = ((span.ends - span.begins) / COSTS.forward).round() as usize;
                let name = name(span.pass.micro_batch, span.pass.stage / ranks);
                let (open, fill) = if span.pass.is_backward { ('‹', "─") } else { ('›', " ") };
                let _ = write!(text, "{}", " ".repeat(waited * width));
                let rest = cells * width - 1 - name.len();
                let _ = write!(text, "{open}{name}{}", fill.repeat(rest - 1) + " ");
                at = span.ends;
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        let _ = writeln!(text, "\n›0 the forward pass of micro-batch 0   ‹0── its backward pass");
        if own_stages > 1 {
            let _ = writeln!(text, "›0a through the rank's first stage, ›0b through its second, and so on");
        }
        text
    }
}
