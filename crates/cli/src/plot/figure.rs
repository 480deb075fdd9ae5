//! Two panels over the size of the array: time, and bus bandwidth.

use plotters::prelude::*;

use super::axis::Axis;
use super::look::{Canvas, Drawn, Legend, Look, MARGIN, WIDTH, text};
use super::row::Row;
use super::series::{Comparison, Series};

const TITLE_HEIGHT: i32 = 64;
const CAPTION_HEIGHT: i32 = 76;
const PANEL_HEIGHT: i32 = 620;
const GRID: RGBColor = RGBColor(0xE2, 0xE2, 0xE2);

/// The maximum number of series with shaded ranges. More ranges blur into each other.
const MOST_BANDS: usize = 4;

pub(super) fn draw(comparison: &Comparison) -> Drawn<String> {
    let mut figure = String::new();
    let legend = Legend::of(&comparison.series);
    let top = MARGIN + TITLE_HEIGHT + legend.height() + CAPTION_HEIGHT;
    {
        let size = (WIDTH as u32, (top + PANEL_HEIGHT + MARGIN) as u32);
        let canvas = SVGBackend::with_string(&mut figure, size).into_drawing_area();
        canvas.fill(&WHITE)?;
        canvas.draw_text(&comparison.title, &text(29), (MARGIN, MARGIN))?;
        legend.draw(&canvas, MARGIN + TITLE_HEIGHT)?;
        draw_panels(&canvas, top, &comparison.series)?;
        canvas.present()?;
    }
    Ok(figure)
}

fn draw_panels(canvas: &Canvas, top: i32, series: &[Series]) -> Drawn {
    let points = series.iter().flat_map(|series| &series.points);
    let sizes = Axis::sizes(points.clone().map(|point| point.bytes as f64));
    let bands = series.len() <= MOST_BANDS;
    let times = points.clone().map(|point| point.time_us);
    let times = times.flat_map(|time| if bands { [time.min, time.p95] } else { [time.p50; 2] });
    let (left, right) = canvas.split_horizontally(WIDTH / 2);
    let time = Panel {
        caption: if bands {
            "time (µs): median; shaded from minimum to 95th percentile"
        } else {
            "time (µs), median"
        },
        sizes: &sizes,
        values: Axis::times(times),
        value: |point| point.time_us.p50,
        bands,
    };
    time.draw(canvas, &left, top, series)?;
    let bandwidth = Panel {
        caption: "bus bandwidth (GB/s)",
        sizes: &sizes,
        values: Axis::bandwidths(points.map(|point| point.busbw_gb_per_s)),
        value: |point| point.busbw_gb_per_s,
        bands: false,
    };
    bandwidth.draw(canvas, &right, top, series)
}

struct Panel<'a> {
    caption: &'a str,
    sizes: &'a Axis,
    values: Axis,
    value: fn(&Row) -> f64,
    /// Whether to shade the range of times.
    bands: bool,
}

impl Panel<'_> {
    /// Draws into a part of the canvas, below `top`.
    fn draw(&self, canvas: &Canvas, part: &Canvas, top: i32, series: &[Series]) -> Drawn {
        part.draw_text(self.caption, &text(25), (MARGIN, top - CAPTION_HEIGHT + 22))?;
        let mut chart = ChartBuilder::on(part)
            .margin_top(top)
            .margin_right(MARGIN + 24)
            .margin_bottom(MARGIN)
            .x_label_area_size(84)
            .y_label_area_size(MARGIN + 84)
            .build_cartesian_2d(self.sizes.clone(), self.values.clone())?;
        chart
            .configure_mesh()
            .bold_line_style(GRID.stroke_width(2))
            .light_line_style(TRANSPARENT)
            .axis_style(GRID.stroke_width(2))
            .set_all_tick_mark_size(6)
            .label_style(text(23))
            .axis_desc_style(text(25))
            .x_desc("size of the array")
            .draw()?;

        let place = |point: &Row, value: f64| chart.backend_coord(&(point.bytes as f64, value));
        if self.bands {
            for (look, series) in Look::all(series) {
                let best = series.points.iter().map(|point| place(point, point.time_us.min));
                let worst = series.points.iter().rev().map(|point| place(point, point.time_us.p95));
                look.band(canvas, best.chain(worst).collect())?;
            }
        }
        for (look, series) in Look::all(series) {
            let points: Vec<_> =
                series.points.iter().map(|point| place(point, (self.value)(point))).collect();
            look.line(canvas, points.clone())?;
            points.into_iter().try_for_each(|point| look.mark(canvas, point))?;
        }
        Ok(())
    }
}
