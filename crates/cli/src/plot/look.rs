//! The style of series, in the panels and in the legend.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use super::series::Series;

pub(super) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// The width of the canvas. It is twice the displayed width, because coordinates are integers.
pub(super) const WIDTH: i32 = 1680;
pub(super) const MARGIN: i32 = 24;

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const BASELINE: RGBColor = RGBColor(0x7A, 0x7A, 0x7A);

/// First the colours of Okabe and Ito, which readers with any colour vision can distinguish, without their yellow, which is faint on white. Then four
/// of Tol's and Brewer's colours, so that each algorithm has its own.
const COLOURS: [RGBColor; 11] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0x88, 0x22, 0x55),
    RGBColor(0x99, 0x99, 0x33),
    RGBColor(0x33, 0x22, 0x88),
    RGBColor(0x98, 0x4E, 0xA3),
];

/// The corners of markers around their centre. The first is a circle. The number of markers is coprime to the number of colours, so that 66 series
/// differ. Markers are outlines, so that coinciding lines are all visible.
const MARKERS: [&[(i32, i32)]; 6] = [
    &[],
    &[(-9, -9), (9, -9), (9, 9), (-9, 9), (-9, -9)],
    &[(0, -13), (12, 8), (-12, 8), (0, -13)],
    &[(0, -14), (12, 0), (0, 14), (-12, 0), (0, -14)],
    &[(0, 13), (12, -8), (-12, -8), (0, 13)],
    &[(-14, -5), (14, -5), (14, 5), (-14, 5), (-14, -5)],
];

/// The marker of the first baseline, often the only one.
const CROSS: &[(i32, i32)] = &[(-9, -9), (9, 9), (0, 0), (-9, 9), (9, -9)];

pub(super) struct Look {
    colour: RGBColor,
    marker: &'static [(i32, i32)],
    dashed: bool,
}

impl Look {
    /// Returns the style of each series. Baselines are grey and dashed, and do not use up a colour.
    pub(super) fn all(series: &[Series]) -> impl Iterator<Item = (Self, &Series)> {
        let mut others = COLOURS.into_iter().cycle().zip(MARKERS.into_iter().cycle());
        let mut baselines = [CROSS].into_iter().chain(MARKERS).cycle().map(|marker| (BASELINE, marker));
        series.iter().map(move |series| {
            let dashed = series.baseline;
            let next = if dashed { baselines.next() } else { others.next() };
            let (colour, marker) = next.expect("a cycle has no end");
            (Self { colour, marker, dashed }, series)
        })
    }

    pub(super) fn line(&self, canvas: &Canvas, points: Vec<(i32, i32)>) -> Drawn {
        let style = self.colour.stroke_width(4);
        if self.dashed {
            canvas.draw(&DashedPathElement::new(points, 14, 8, style))
        } else {
            canvas.draw(&PathElement::new(points, style))
        }
    }

    pub(super) fn mark(&self, canvas: &Canvas, (x, y): (i32, i32)) -> Drawn {
        let style = self.colour.stroke_width(3);
        if self.marker.is_empty() {
            return canvas.draw(&Circle::new((x, y), 10, style));
        }
        let corners: Vec<_> = self.marker.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        canvas.draw(&PathElement::new(corners, style))
    }

    pub(super) fn band(&self, canvas: &Canvas, outline: Vec<(i32, i32)>) -> Drawn {
        canvas.draw(&Polygon::new(outline, self.colour.mix(0.12)))
    }
}

/// The legend: labels in columns above the panels.
pub(super) struct Legend<'a> {
    series: &'a [Series],
    columns: usize,
    column_width: i32,
}

const LEGEND_LINE_HEIGHT: i32 = 38;
const LABEL_SIZE: i32 = 25;
/// The length of the line next to a label, and the gap between them.
const SAMPLE: i32 = 64;
const GAP: i32 = 14;

impl<'a> Legend<'a> {
    pub(super) fn of(series: &'a [Series]) -> Self {
        // The viewer chooses the font. Most letters are narrower than this.
        let width = |label: &str| label.chars().count() as i32 * LABEL_SIZE * 6 / 10;
        let widest = series.iter().map(|series| width(&series.label)).max().unwrap_or(0);
        let column_width = SAMPLE + GAP + widest + 2 * GAP;
        let most = ((WIDTH - 2 * MARGIN) / column_width).max(1) as usize;
        // Uses as few lines as possible, filled evenly.
        let lines = series.len().div_ceil(most).max(1);
        let columns = series.len().div_ceil(lines).max(1);
        Self { series, columns, column_width }
    }

    pub(super) fn height(&self) -> i32 {
        self.series.len().div_ceil(self.columns) as i32 * LEGEND_LINE_HEIGHT
    }

    pub(super) fn draw(&self, canvas: &Canvas, top: i32) -> Drawn {
        for (index, (look, series)) in Look::all(self.series).enumerate() {
            let x = MARGIN + (index % self.columns) as i32 * self.column_width;
            let y = top + (index / self.columns) as i32 * LEGEND_LINE_HEIGHT;
            let middle = y + LABEL_SIZE / 2;
            look.line(canvas, vec![(x, middle), (x + SAMPLE, middle)])?;
            look.mark(canvas, (x + SAMPLE / 2, middle))?;
            canvas.draw_text(&series.label, &text(LABEL_SIZE), (x + SAMPLE + GAP, y))?;
        }
        Ok(())
    }
}

/// Returns the style of text with a given height in canvas units.
pub(super) fn text(size: i32) -> TextStyle<'static> {
    // plotters divides by this factor to leave space between lines.
    ("sans-serif", f64::from(size) * 1.24).into_font().color(&INK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(count: usize) -> Vec<Series> {
        let one =
            |index| Series { label: format!("algorithm {index:>2}"), baseline: false, points: Vec::new() };
        (0..count).map(one).collect()
    }

    #[test]
    fn eleven_series_have_distinct_colours() {
        let series = series(11);
        let colours: Vec<_> = Look::all(&series).map(|(look, _)| look.colour).collect();
        for (index, one) in colours.iter().enumerate() {
            for other in &colours[..index] {
                let apart = |one: u8, other: u8| f64::from(one.abs_diff(other)).powi(2);
                let distance = apart(one.0, other.0) + apart(one.1, other.1) + apart(one.2, other.2);
                assert!(distance.sqrt() > 60.0, "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn lines_of_a_legend_are_filled_evenly() {
        for count in 1..=24 {
            let series = series(count);
            let legend = Legend::of(&series);
            let lines = count.div_ceil(legend.columns);
            let last = count - (lines - 1) * legend.columns;
            assert!(
                legend.columns - last < lines,
                "{count} series: {last} of {} in the last",
                legend.columns
            );
        }
    }
}
