//! The least point of a few planes over a box: the small linear program inside the dual descent. Knows nothing of
//! knapsacks.
//!
//! With d prices and n planes, the program "minimise the highest plane" has d + 1 variables and many rows, so its dual
//! is solved: d + 1 rows, one column per plane and per side of the box. The highest plane at the centre and one side of
//! the box per price are a feasible basis at once, and "reduced cost" means "how far this plane lies above the point".

/// A plane that lies nowhere above the function: `height + slope · offset`, offsets from the centre of the box.
#[derive(Debug, Clone)]
pub(super) struct Plane {
    pub height: f64,
    pub slope: Vec<f64>,
}

impl Plane {
    pub(super) fn at(&self, offset: &[f64]) -> f64 {
        self.height + dot(&self.slope, offset)
    }
}

/// Where the highest plane is lowest, and how high that is.
#[derive(Debug)]
pub(super) struct Lowest {
    pub offset: Vec<f64>,
    pub height: f64,
}

/// The lowest point of the upper envelope within `low <= offset <= high`. Heights closer than `precision` are equal.
pub(super) fn lowest(planes: &[Plane], low: &[f64], high: &[f64], precision: f64) -> Lowest {
    let mut simplex = Simplex::start(planes, low, high);
    for _ in 0..40 + 20 * simplex.rows {
        let point = simplex.point();
        let Some(column) = simplex.highest_above(&point, precision) else { break };
        if !simplex.enter(column) {
            break;
        }
    }
    let point = simplex.point();
    let offset = point[1..].iter().zip(low).zip(high).map(|((x, low), high)| x.clamp(*low, *high)).collect();
    Lowest { offset, height: point[0] }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A column of the dual program.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Plane(usize),
    Low(usize),
    High(usize),
}

struct Simplex<'a> {
    planes: &'a [Plane],
    low: &'a [f64],
    high: &'a [f64],
    rows: usize,
    /// How much height one unit of offset is worth: makes sides of the box comparable with planes.
    steepness: Vec<f64>,
    basis: Vec<Column>,
    /// Inverse of the basis, row by row.
    inverse: Vec<f64>,
    level: Vec<f64>,
}

impl<'a> Simplex<'a> {
    fn start(planes: &'a [Plane], low: &'a [f64], high: &'a [f64]) -> Self {
        let rows = low.len() + 1;
        let first = (1..planes.len()).fold(0, |best, i| if planes[i].height > planes[best].height { i } else { best });
        let slope = &planes[first].slope;
        let mut basis = vec![Column::Plane(first)];
        let mut inverse = vec![0.0; rows * rows];
        let mut level = vec![1.0];
        inverse[0] = 1.0;
        for (price, &slope) in slope.iter().enumerate() {
            let sign = if slope >= 0.0 { 1.0 } else { -1.0 };
            basis.push(if slope >= 0.0 { Column::Low(price) } else { Column::High(price) });
            inverse[(price + 1) * rows] = sign * slope;
            inverse[(price + 1) * rows + price + 1] = sign;
            level.push(slope.abs());
        }
        let steepest = |price: usize| planes.iter().map(|plane| plane.slope[price].abs()).fold(1.0, f64::max);
        let steepness = (0..low.len()).map(steepest).collect();
        Self { planes, low, high, rows, steepness, basis, inverse, level }
    }

    /// Height and offset at which all columns of the basis meet.
    fn point(&self) -> Vec<f64> {
        let mut point = vec![0.0; self.rows];
        for (row, column) in self.basis.iter().enumerate() {
            let cost = match *column {
                Column::Plane(plane) => self.planes[plane].height,
                Column::Low(price) => self.low[price],
                Column::High(price) => -self.high[price],
            };
            for (value, entry) in point.iter_mut().zip(&self.inverse[row * self.rows..]) {
                *value += cost * entry;
            }
        }
        point
    }

    /// The plane that lies highest above the point, or the side of the box that is left behind most.
    fn highest_above(&self, point: &[f64], precision: f64) -> Option<Column> {
        let (height, offset) = (point[0], &point[1..]);
        let mut best = (precision, None);
        let mut consider = |above: f64, column: Column| {
            if above > best.0 {
                best = (above, Some(column));
            }
        };
        for (index, plane) in self.planes.iter().enumerate() {
            consider(plane.at(offset) - height, Column::Plane(index));
        }
        for (price, &x) in offset.iter().enumerate() {
            consider((self.low[price] - x) * self.steepness[price], Column::Low(price));
            consider((x - self.high[price]) * self.steepness[price], Column::High(price));
        }
        best.1
    }

    /// Exchanges a column of the basis for this one. False if nothing limits it, which only rounding can cause.
    fn enter(&mut self, column: Column) -> bool {
        let direction = self.direction(column);
        let mut leaving: Option<(usize, f64)> = None;
        for (row, &step) in direction.iter().enumerate() {
            if step > 1e-11 {
                let ratio = self.level[row].max(0.0) / step;
                let better = leaving
                    .is_none_or(|(old, least)| ratio < least - 1e-15 || (ratio <= least && step > direction[old]));
                if better {
                    leaving = Some((row, ratio));
                }
            }
        }
        let Some((pivot, ratio)) = leaving else { return false };
        let scale = 1.0 / direction[pivot];
        for entry in 0..self.rows {
            self.inverse[pivot * self.rows + entry] *= scale;
        }
        for row in (0..self.rows).filter(|row| *row != pivot) {
            self.level[row] -= ratio * direction[row];
            for entry in 0..self.rows {
                self.inverse[row * self.rows + entry] -= direction[row] * self.inverse[pivot * self.rows + entry];
            }
        }
        self.level[pivot] = ratio;
        self.basis[pivot] = column;
        true
    }

    /// The column expressed in the basis.
    fn direction(&self, column: Column) -> Vec<f64> {
        let entry = |row: usize, column_of: usize| self.inverse[row * self.rows + column_of];
        let express = |row: usize| match column {
            Column::Plane(plane) => {
                let slope = &self.planes[plane].slope;
                entry(row, 0) - slope.iter().enumerate().map(|(price, s)| s * entry(row, price + 1)).sum::<f64>()
            }
            Column::Low(price) => entry(row, price + 1),
            Column::High(price) => -entry(row, price + 1),
        };
        (0..self.rows).map(express).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(planes: &[(f64, &[f64])], low: &[f64], high: &[f64]) -> (Vec<f64>, f64) {
        let planes: Vec<_> =
            planes.iter().map(|(height, slope)| Plane { height: *height, slope: slope.to_vec() }).collect();
        let found = lowest(&planes, low, high, 1e-12);
        (found.offset, found.height)
    }

    #[test]
    fn two_planes_meet_at_the_bottom_of_their_valley() {
        let (offset, height) = check(&[(4.0, &[-2.0]), (1.0, &[1.0])], &[-9.0], &[9.0]);
        assert!((offset[0] - 1.0).abs() < 1e-12 && (height - 2.0).abs() < 1e-12, "{offset:?} {height}");
    }

    #[test]
    fn one_plane_falls_to_the_corner_of_the_box() {
        assert_eq!(check(&[(5.0, &[1.0, -2.0])], &[-1.0, -1.0], &[2.0, 3.0]), (vec![-1.0, 3.0], -2.0));
    }

    #[test]
    fn a_flat_plane_holds_the_height() {
        let (_, height) = check(&[(3.0, &[1.0]), (2.5, &[0.0])], &[-4.0], &[4.0]);
        assert!((height - 2.5).abs() < 1e-12);
    }

    #[test]
    fn the_answer_is_no_higher_than_any_point_of_a_grid() {
        let mut state = 7_u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / (1_u64 << 23) as f64 - 1.0
        };
        for _ in 0..200 {
            let planes: Vec<Plane> = (0..12).map(|_| Plane { height: draw(), slope: vec![draw(), draw()] }).collect();
            let found = lowest(&planes, &[-1.0, -0.5], &[0.7, 1.0], 1e-12);
            let envelope = |offset: &[f64]| planes.iter().map(|plane| plane.at(offset)).fold(f64::MIN, f64::max);
            assert!((envelope(&found.offset) - found.height).abs() < 1e-9);
            for step in 0..400 {
                let x = -1.0 + 1.7 * f64::from(step % 20) / 19.0;
                let y = -0.5 + 1.5 * f64::from(step / 20) / 19.0;
                assert!(found.height <= envelope(&[x, y]) + 1e-9);
            }
        }
    }
}
