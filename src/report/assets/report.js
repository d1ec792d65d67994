// Draws the report's charts from the data in the page.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = [];
  const darkScheme = matchMedia("(prefers-color-scheme: dark)");
  const smoothBox = document.getElementById("smooth");
  const hidden = data.groups.map(() => false);
  let printing = false;

  const variable = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const lineColour = (group) =>
    darkScheme.matches && !printing ? data.groups[group].dark : data.groups[group].light;

  const shortNumber = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
    return String(Number(value.toPrecision(3)));
  };
  const superscript = (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);
  const powerOfTen = (value) => {
    const exponent = Math.round(Math.log10(value));
    if (exponent >= -3 && exponent <= 3) return String(Number(value.toPrecision(1)));
    return "10" + [...String(exponent)].map(superscript).join("");
  };

  // A band's edges are two invisible lines, the lower filling up to the upper; the mean is a third.
  const datasets = (chart, smoothed) =>
    chart.series.flatMap((series) => {
      const points = smoothed && chart.smooth ? series.smooth : series.raw;
      const column = (index) => points.map((point) => ({ x: point[0], y: point[index] }));
      const colour = lineColour(series.group);
      const shared = {
        group: series.group,
        hidden: hidden[series.group],
        pointRadius: 0,
        pointHoverRadius: 0,
        tension: 0,
      };
      const edge = { ...shared, borderWidth: 0, borderColor: "transparent", band: true };
      const band = series.runs > 1
        ? [
            { ...edge, data: column(2), backgroundColor: colour + "26", fill: "+1" },
            { ...edge, data: column(3), fill: false },
          ]
        : [];
      const sparse = points.length <= 30;
      return [
        ...band,
        {
          ...shared,
          label: data.groups[series.group].name,
          data: column(1),
          borderColor: colour,
          backgroundColor: colour,
          borderWidth: 2,
          borderDash: data.groups[series.group].dash,
          borderJoinStyle: "round",
          pointRadius: sparse ? 2 : 0,
          pointHoverRadius: 4,
          fill: false,
        },
      ];
    });

  // The foot of the log axis stands for zero: a line of its own, set apart from the decades.
  const zeroLine = {
    id: "zeroLine",
    beforeDatasetsDraw(chart) {
      const axis = chart.options.quadsAxis;
      if (!axis || !axis.has_zero) return;
      const { ctx, chartArea, scales } = chart;
      const y = scales.y.getPixelForValue(axis.min);
      ctx.save();
      ctx.strokeStyle = variable("--soft");
      ctx.lineWidth = 1;
      ctx.setLineDash([2, 3]);
      ctx.beginPath();
      ctx.moveTo(chartArea.left, y);
      ctx.lineTo(chartArea.right, y);
      ctx.stroke();
      ctx.restore();
    },
  };

  const decades = (axis) => {
    const first = Math.round(Math.log10(axis.min)) + (axis.has_zero ? 1 : 0);
    const last = Math.round(Math.log10(axis.max));
    const stride = Math.ceil((last - first + 1) / 8);
    const ticks = axis.has_zero ? [{ value: axis.min }] : [];
    for (let exponent = first; exponent <= last; exponent += stride) {
      ticks.push({ value: Number("1e" + exponent) });
    }
    return ticks;
  };

  const verticalAxis = (chart) => {
    const common = {
      title: { display: true, text: chart.unit, color: variable("--soft") },
      grid: { color: variable("--grid"), borderColor: variable("--rule"), drawTicks: false },
    };
    const ticks = { color: variable("--soft"), padding: 6 };
    if (!chart.axis) {
      return {
        ...common,
        type: "linear",
        beginAtZero: chart.share,
        ticks: { ...ticks, maxTicksLimit: 7, callback: shortNumber },
      };
    }
    const isZero = (value) => chart.axis.has_zero && value === chart.axis.min;
    return {
      ...common,
      type: "logarithmic",
      // A little room below the foot, so that a line on it is not cut.
      min: chart.axis.has_zero ? chart.axis.min * 0.6 : chart.axis.min,
      max: chart.axis.max,
      afterBuildTicks: (scale) => { scale.ticks = decades(chart.axis); },
      ticks: {
        ...ticks,
        autoSkip: false,
        callback: (value) => (isZero(value) ? "exactly 0" : powerOfTen(value)),
      },
    };
  };

  const options = (chart) => ({
    animation: false,
    responsive: true,
    maintainAspectRatio: false,
    normalized: true,
    quadsAxis: chart.axis,
    interaction: { mode: "nearest", axis: "x", intersect: false },
    scales: {
      x: {
        type: "linear",
        title: { display: true, text: "step", color: variable("--soft") },
        grid: { display: false, borderColor: variable("--rule") },
        ticks: { color: variable("--soft"), maxTicksLimit: 9, maxRotation: 0, precision: 0 },
        bounds: "data",
      },
      y: verticalAxis(chart),
    },
    plugins: {
      legend: { display: false },
      tooltip: {
        filter: (item) => !item.dataset.band,
        usePointStyle: true,
        itemSort: (a, b) => b.parsed.y - a.parsed.y,
        callbacks: {
          title: (items) => (items.length ? "step " + items[0].parsed.x : ""),
          label: (item) => {
            const value = item.parsed.y;
            const zero = chart.axis && chart.axis.has_zero && value <= chart.axis.min;
            return " " + item.dataset.label + "  " + (zero ? "exactly 0" : shortNumber(value));
          },
          labelPointStyle: () => ({ pointStyle: "circle", rotation: 0 }),
        },
      },
    },
  });

  const redraw = () => {
    for (const { chart, spec } of charts) {
      chart.options = options(spec);
      chart.data.datasets = datasets(spec, smoothBox.checked);
      chart.update("none");
    }
  };

  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  for (const spec of data.charts) {
    const canvas = document.getElementById("chart-" + spec.id);
    if (!canvas) continue;
    const chart = new Chart(canvas, {
      type: "line",
      data: { datasets: datasets(spec, smoothBox.checked) },
      options: options(spec),
      plugins: [zeroLine],
    });
    canvas.dataset.lines = spec.series.length;
    charts.push({ chart, spec });
  }

  document.querySelectorAll(".bar button").forEach((button) => {
    button.addEventListener("click", () => {
      const group = Number(button.dataset.group);
      hidden[group] = !hidden[group];
      button.setAttribute("aria-pressed", String(!hidden[group]));
      redraw();
    });
  });
  smoothBox.addEventListener("change", redraw);
  darkScheme.addEventListener("change", redraw);
  const print = (on) => () => {
    printing = on;
    redraw();
    for (const { chart } of charts) chart.resize();
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  document.documentElement.dataset.charts = String(charts.length);
})();
