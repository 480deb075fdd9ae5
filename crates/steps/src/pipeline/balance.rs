//! Cuts of a model into stages.

/// Returns the first layer of each stage, for stages of consecutive layers with these costs. The cut minimises the cost of the costliest stage. Among
/// such cuts, it is one with even stages. Returns `None` if there are fewer layers than stages, or no stage.
///
/// ```
/// use unisono_steps::pipeline::balance;
///
/// assert_eq!(balance(&[3.0, 1.0, 1.0, 2.0], 2), Some(vec![0, 1]));
/// assert_eq!(balance(&[1.0], 2), None);
/// ```
pub fn balance(costs: &[f64], stages: usize) -> Option<Vec<usize>> {
    let last = |from: usize| Cut::default().after(from, costs[from..].iter().sum());
    // The best cut of the layers from each index on, into one stage, then into more and more.
    let mut best: Vec<_> = (0..costs.len()).map(|from| Some(last(from))).collect();
    for _ in 1..stages {
        let of = |from: usize| {
            let ends = from + 1..costs.len();
            let cuts =
                ends.filter_map(|to| Some(best[to].as_ref()?.after(from, costs[from..to].iter().sum())));
            cuts.min_by(|one, other| {
                one.most.total_cmp(&other.most).then(one.squares.total_cmp(&other.squares))
            })
        };
        best = (0..costs.len()).map(of).collect();
    }
    let cut = best.into_iter().next().flatten().filter(|_| stages > 0)?;
    Some(cut.firsts.into_iter().rev().collect())
}

/// A cut of the last layers of a model into stages.
#[derive(Default)]
struct Cut {
    /// The cost of the costliest stage.
    most: f64,
    /// The sum of the squares of the costs, which is smallest if they are even.
    squares: f64,
    /// The first layers of the stages, from the last stage to the first.
    firsts: Vec<usize>,
}

impl Cut {
    /// Returns this cut with another stage before it.
    fn after(&self, first: usize, cost: f64) -> Self {
        let Self { most, squares, firsts } = self;
        let firsts = [firsts, &[first][..]].concat();
        Self { most: cost.max(*most), squares: squares + cost * cost, firsts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every cut of these layers.
    fn cuts(layers: usize, stages: usize) -> Vec<Vec<usize>> {
        if stages == 1 {
            return vec![vec![0]];
        }
        let last = stages - 1..layers;
        let with =
            |last: usize| cuts(last, stages - 1).into_iter().map(move |cut| [cut, vec![last]].concat());
        last.flat_map(with).collect()
    }

    fn most(costs: &[f64], cut: &[usize]) -> f64 {
        let ends = cut[1..].iter().copied().chain([costs.len()]);
        cut.iter().zip(ends).map(|(&from, to)| costs[from..to].iter().sum()).fold(0.0, f64::max)
    }

    #[test]
    fn no_other_cut_has_a_cheaper_costliest_stage() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % 9) as f64
        };
        for layers in 1..8 {
            let costs: Vec<_> = (0..layers).map(|_| random()).collect();
            for stages in 1..=layers {
                let found = balance(&costs, stages).unwrap();
                let least = cuts(layers, stages).iter().map(|cut| most(&costs, cut)).fold(f64::MAX, f64::min);
                assert!(found.len() == stages && found[0] == 0, "{found:?}");
                assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
                assert_eq!(most(&costs, &found), least, "{costs:?} in {stages}: {found:?}");
            }
        }
    }

    #[test]
    fn other_stages_are_even_if_one_dominates() {
        assert_eq!(balance(&[9.0, 1.0, 1.0, 1.0, 1.0], 3), Some(vec![0, 1, 3]));
        assert_eq!((balance(&[], 0), balance(&[1.0, 2.0], 3)), (None, None));
    }
}
