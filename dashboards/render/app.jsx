// Draws one board with Grafana's own components, from the board's JSON and what Prometheus answered (data.js).
// Does what Grafana's panel plugins do around them: names, overrides, plugin defaults, the grid, annotation marks.
import 'uplot/dist/uPlot.min.css';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { of } from 'rxjs';
import { createTheme, dateTime, FieldType, getDisplayProcessor, getDisplayValueAlignmentFactors,
  reduceField, standardTransformers, ThemeContext, toDataFrame, VizOrientation } from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

const board = window.BOARD;
const { from, to, step } = window.DATA;
const { models, answers, marks } = window.DATA.boards[board.uid];
const theme = createTheme({ colors: { mode: 'dark' } });
const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now-3m', to: 'now' } };
const ROOM = { columns: 24, width: 1584, cell: 30, gap: 8 };
const DEFAULTS = {
  stat: { color: { mode: 'thresholds' }, custom: {} },
  table: { color: { mode: 'thresholds' }, custom: { align: 'auto', cellOptions: { type: 'auto' } } },
  timeseries: {
    color: { mode: 'palette-classic' },
    custom: { drawStyle: 'line', lineInterpolation: 'linear', axisPlacement: 'auto', pointSize: 5, showPoints: 'auto' },
  },
};

function named(legend, labels) {
  return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
}

function applies({ id, options }, name) {
  if (id === 'byName') return name === options;
  if (id === 'byRegexp') return new RegExp(options.slice(1, options.lastIndexOf('/'))).test(name);
  throw new Error(`matcher ${id} is not drawn here`);
}

function fieldConfig(panel, name) {
  const { defaults, overrides } = structuredClone(panel.fieldConfig);
  const plugin = DEFAULTS[panel.type];
  const config = { ...plugin, ...defaults, custom: { ...plugin.custom, ...defaults.custom }, displayNameFromDS: name };
  for (const { matcher, properties } of overrides) {
    if (!applies(matcher, name)) continue;
    for (const { id, value } of properties) {
      if (id.startsWith('custom.')) config.custom[id.slice('custom.'.length)] = value;
      else config[id] = value;
    }
  }
  if (config.thresholds) config.thresholds.steps[0].value = -Infinity;
  config.mappings ??= [];
  return config;
}

function frames(panel) {
  const series = panel.targets.flatMap((target) =>
    (answers[target.expr] ?? []).map((found) => ({ ...found, target, name: named(target.legendFormat, found.labels) })),
  );
  return series.map(({ target, name, points }, seriesIndex) => {
    const frame = toDataFrame({
      refId: target.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: points.map(([at]) => at * 1000), config: { interval: step * 1000 } },
        { name: 'Value', type: FieldType.number, values: points.map(([, value]) => Number(value)), config: fieldConfig(panel, name) },
      ],
    });
    frame.fields.forEach((field) => {
      field.state = { ...field.state, seriesIndex, displayName: field.config.displayNameFromDS ?? field.name };
      field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
    });
    return frame;
  });
}

function NoData({ panel }) {
  const style = { display: 'grid', placeItems: 'center', height: '100%', color: theme.colors.text.secondary };
  return <div style={style}>{panel.fieldConfig.defaults.noValue ?? 'No data'}</div>;
}

function Stat({ panel, width, height }) {
  const { options } = panel;
  const text = panel.fieldConfig.defaults.noValue ?? 'No data';
  const values = frames(panel).map(({ fields: [, field] }) => ({
    ...field.display(reduceField({ field, reducers: options.reduceOptions.calcs })[options.reduceOptions.calcs[0]]),
    title: field.state.displayName,
  }));
  if (!values.length) values.push({ text, numeric: NaN, color: theme.colors.text.secondary, title: '' });
  return (
    <VizRepeater getValues={() => values} source={values} renderCounter={0} width={width} height={height} itemSpacing={3}
      orientation={options.orientation ?? VizOrientation.Auto} autoGrid
      getAlignmentFactors={(all) => getDisplayValueAlignmentFactors(all.map((display) => ({ display })))}
      renderValue={({ value, alignmentFactors, count, width, height }) => (
        <BigValue value={value} alignmentFactors={alignmentFactors} count={count} width={width} height={height} theme={theme}
          textMode={options.textMode ?? 'auto'} colorMode={options.colorMode} graphMode={options.graphMode}
          justifyMode={options.justifyMode ?? 'auto'} text={options.text} disableWideLayout={options.wideLayout === false} />
      )} />
  );
}

function drawMarks(plot) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = 1;
  ctx.globalAlpha = 0.8;
  for (const { color, start, end } of marks) {
    const [left, right] = [start, end].map((at) => Math.round(plot.valToPos(at * 1000, 'x', true)));
    ctx.strokeStyle = ctx.fillStyle = theme.visualization.getColorByName(color);
    ctx.setLineDash([5, 5]);
    for (const x of new Set([left, right])) {
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    const [first, last] = [Math.max(left - 3, bbox.left), Math.min(right + 3, bbox.left + bbox.width)];
    ctx.fillRect(first, bbox.top + bbox.height, last - first, 4);
  }
  ctx.restore();
}

function Graph({ panel, width, height }) {
  const shown = frames(panel);
  if (!shown.length) return <NoData panel={panel} />;
  return (
    <TimeSeries frames={shown} timeRange={range} timeZone="utc" width={width} height={height} theme={theme} structureRev={1}
      legend={panel.options.legend}>
      {(config) => { config.addHook('draw', drawMarks); return null; }}
    </TimeSeries>
  );
}

// A table query's frame as Grafana's data source makes it (time, labels, value), through Grafana's own transformation.
function Rows({ panel, width, height }) {
  const [target] = panel.targets;
  const found = answers[target.expr] ?? [];
  if (!found.length) return <NoData panel={panel} />;
  const column = (name, type, value) => ({ name, type, values: found.map(value), config: {} });
  const frame = toDataFrame({
    refId: target.refId,
    fields: [
      column('Time', FieldType.time, ({ points }) => points.at(-1)[0] * 1000),
      ...Object.keys(found[0].labels).sort().map((name) => column(name, FieldType.string, ({ labels }) => labels[name])),
      column('Value', FieldType.number, ({ points }) => Number(points.at(-1)[1])),
    ],
  });
  const [{ options }] = panel.transformations;
  let organized;
  of([frame]).pipe(standardTransformers.organizeFieldsTransformer.operator(options, { interpolate: (text) => text }))
    .subscribe(([made]) => { organized = made; });
  organized.fields.forEach((field) => {
    field.config = fieldConfig(panel, field.config.displayName);
    field.config.links = undefined; // they lead nowhere in a picture
    field.state = { displayName: field.config.displayNameFromDS };
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
  });
  return (
    <TableNG data={organized} width={width} height={height} cellHeight={panel.options.cellHeight} sortBy={panel.options.sortBy} />
  );
}

const DRAWN = { stat: Stat, table: Rows, timeseries: Graph };

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const column = (ROOM.width + ROOM.gap) / ROOM.columns;
  const [width, height] = [w * column - ROOM.gap, h * (ROOM.cell + ROOM.gap) - ROOM.gap];
  const place = { position: 'absolute', left: x * column, top: y * (ROOM.cell + ROOM.gap), width, height };
  if (panel.type === 'row') return <div data-row={panel.title} style={{ ...place, ...ROW }}>⌄ {panel.title}</div>;
  const Drawn = DRAWN[panel.type];
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
        {(innerWidth, innerHeight) => Drawn
          ? <Drawn panel={panel} width={innerWidth} height={innerHeight} />
          : <div>A {panel.type} panel: Grafana does not export what draws it.</div>}
      </PanelChrome>
    </div>
  );
}

const ROW = { ...theme.typography.h5, display: 'flex', alignItems: 'center' };
const HEAD = { display: 'flex', justifyContent: 'space-between', padding: '10px 0', height: 40 };

function Board() {
  const bottom = Math.max(...board.panels.map(({ gridPos: { y, h } }) => y + h)) * (ROOM.cell + ROOM.gap);
  const time = (at) => new Date(at * 1000).toISOString().slice(11, 19);
  return (
    <div style={{ width: ROOM.width + 2 * ROOM.gap, padding: ROOM.gap, background: theme.colors.background.canvas }}>
      <div style={HEAD}>
        <span style={theme.typography.h5}>{board.title}{models.length > 0 && `, model ${models.join(', ')}`}</span>
        <span style={{ color: theme.colors.text.secondary }}>
          {time(from)} to {time(to)} UTC. Drawn with @grafana/ui from the board&#39;s JSON, not by Grafana.
        </span>
      </div>
      <div style={{ position: 'relative', height: bottom }}>
        {board.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
      </div>
    </div>
  );
}

// Text is measured when it is laid out: the font, which the global styles name, has to be there first.
function App() {
  const [ready, setReady] = useState(false);
  useEffect(() => {
    Promise.all(['400', '500'].map((weight) => document.fonts.load(`${weight} 14px Inter`))).then(() => setReady(true));
  }, []);
  return <ThemeContext.Provider value={theme}><GlobalStyles />{ready && <Board />}</ThemeContext.Provider>;
}

createRoot(document.getElementById('root')).render(<App />);
