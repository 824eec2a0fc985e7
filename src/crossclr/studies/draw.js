for (const place of document.querySelectorAll("script[data-plot]")) {
  const target = document.getElementById(place.dataset.plot), plot = JSON.parse(place.textContent);
  Plotly.newPlot(target, plot.data, plot.layout, {responsive: true, displaylogo: false, displayModeBar: "hover"});
}
