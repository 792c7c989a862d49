//! What the policies by remaining work have in common: rank by a measure of what is left, preempt in that order.

use cluster::{Span, Time};
use plan::{Claim, Knowledge, Plan, Policy, Snapshot};

use crate::blocks::draft::Draft;
use crate::blocks::order::{Line, Order, Rank, Standing};
use crate::blocks::place::Style;
use crate::blocks::preempt;
use crate::blocks::remaining::Source;
use crate::config::{ConfigError, PolicyConfig};

/// Least left first, by a measure of claim and time left. Claims about which nobody can say anything go last.
#[derive(Debug)]
pub(crate) struct Shortest {
    rule: Rule,
    line: Line<Key>,
}

/// What is left; who runs before who waits; who came first.
type Key = (u64, Standing, Time);

#[derive(Debug)]
struct Rule {
    source: Source,
    measure: fn(&Claim, Span) -> u64,
}

impl Shortest {
    pub(crate) fn from_config(
        config: &PolicyConfig,
        measure: fn(&Claim, Span) -> u64,
    ) -> Result<Shortest, ConfigError> {
        let source = config.choice("knowledge", &[("oracle", Source::Oracle), ("estimate", Source::Estimate)])?;
        Ok(Shortest { rule: Rule { source, measure }, line: Line::new() })
    }
}

impl Policy for Shortest {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        self.line.update(snapshot, &self.rule);
        let mut draft = Draft::new(snapshot);
        preempt::in_order(&mut draft, &self.line, &self.rule, |_| Style::Pack, false);
        draft.plan(None)
    }

    fn knows(&self) -> &'static [Knowledge] {
        self.rule.source.knows()
    }
}

impl Order for Rule {
    type Key = Key;

    fn rank(&self, snapshot: &Snapshot<'_>, claim: &Claim, standing: Standing) -> Rank<Key> {
        let left = self.source.at_best(snapshot, claim).map_or(u64::MAX, |left| (self.measure)(claim, left));
        Rank::moving_if(self.source.moves(claim), (left, standing, claim.submitted))
    }
}
