//! What series look like: in the panels, and in the legend.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use super::series::Series;

pub(super) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// Coordinates are whole numbers, so the canvas is twice as large as a page shows it.
pub(super) const WIDTH: i32 = 1680;
pub(super) const MARGIN: i32 = 24;

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const BASELINE: RGBColor = RGBColor(0x7A, 0x7A, 0x7A);

/// The colours of Okabe and Ito, which readers with any colour vision tell apart; without their yellow,
/// which is lost on white.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x00, 0x00),
];

/// The corners of markers, around their middle; the first is a circle. Their number has no factor in common
/// with that of colours, so that 42 series differ. Markers are outlines: of lines that coincide, all show.
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

/// What one series looks like.
pub(super) struct Look {
    colour: RGBColor,
    marker: &'static [(i32, i32)],
    dashed: bool,
}

impl Look {
    /// The look of each series. Baselines are grey and dashed, and take no colour from the others.
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

    /// A line, without its markers.
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

/// Labels in columns, above the panels and so beside every line.
pub(super) struct Legend<'a> {
    series: &'a [Series],
    columns: usize,
    column_width: i32,
}

const LEGEND_LINE_HEIGHT: i32 = 38;
const LABEL_SIZE: i32 = 25;
/// The length of line beside a label, and the distance to it.
const SAMPLE: i32 = 64;
const GAP: i32 = 14;

impl<'a> Legend<'a> {
    pub(super) fn of(series: &'a [Series]) -> Self {
        // Who shows the figure has a font of their own: most letters are narrower than this.
        let width = |label: &str| label.chars().count() as i32 * LABEL_SIZE * 6 / 10;
        let widest = series.iter().map(|series| width(&series.label)).max().unwrap_or(0);
        let column_width = SAMPLE + GAP + widest + 2 * GAP;
        let columns = ((WIDTH - 2 * MARGIN) / column_width).max(1) as usize;
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

/// Text of a height in the units of the canvas.
pub(super) fn text(size: i32) -> TextStyle<'static> {
    // plotters divides by this, for the room between lines.
    ("sans-serif", f64::from(size) * 1.24).into_font().color(&INK)
}
