(width, height) => {
  // The styles that are in use, but for those of other windows and other devices.
  const used = (rule) => {
    try {
      const plain = rule.selectorText.replace(/::?(before|after|placeholder|-[a-z-]+|backdrop)/g, "");
      return plain.split(",").some((one) => one.trim() === "" || document.querySelector(one));
    } catch {
      return false;
    }
  };
  const styles = (rules) => [...rules].flatMap((rule) => {
    if (rule.selectorText) return used(rule) && !/:(hover|focus)/.test(rule.selectorText) ? [rule.cssText] : [];
    const theme = rule.conditionText?.includes("prefers-color-scheme");
    return theme ? [`@media ${rule.conditionText} { ${styles(rule.cssRules).join(" ")} }`] : [];
  });
  const css = [...document.styleSheets].flatMap((sheet) => styles(sheet.cssRules)).join("\n");
  const body = document.body.cloneNode(true);
  for (const one of body.querySelectorAll("script, dialog, .sr-only, .skip, input[type=hidden], [hidden], .sheet, svg title")) one.remove();
  for (const one of body.querySelectorAll("*")) {
    for (const { name } of [...one.attributes]) {
      if (/^(data-|aria-(?!current)|on)|^(id|title|datetime|href|action|method|role|tabindex|scope|focusable|for|name|autocomplete|spellcheck)$/.test(name)) one.removeAttribute(name);
    }
  }
  let text = new XMLSerializer().serializeToString(body);
  // The same names and dates each time.
  const names = [];
  text = text.replace(/[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/g, (name) => {
    if (!names.includes(name)) names.push(name);
    return `019c125e-7a40-7c31-9d5e-4f2b8a6c1e${(names.indexOf(name) + 10).toString(16)}`.slice(0, 36);
  });
  text = text.replace(/[0-9a-f]{8}-[0-9a-f]{4}…[0-9a-f]{4}/g, "019c125e-7a40…1e0a");
  const date = /\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC/g;
  const moment = (shown) => Date.parse(shown.replace(" UTC", "Z").replace(" ", "T"));
  const first = Math.min(...(text.match(date) ?? []).map(moment));
  text = text.replace(date, (shown) => {
    const since = Math.floor((moment(shown) - first) / 1000) * 1000;
    return new Date(Date.parse("2026-01-31T08:30:00Z") + since).toISOString().replace("T", " ").replace(".000Z", " UTC");
  });
  text = text.replace(/(\d+ min) \d\d s/g, "$1");
  const fixed = `body { width: ${width}px; height: ${height}px; min-height: 0; overflow: hidden; } .top, .side { position: static; } .side { height: auto; align-self: stretch; }`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" data-theme="auto">
<style>
${css.replace(/&/g, "&amp;").replace(/</g, "&lt;")}
${fixed}
</style>
<foreignObject width="${width}" height="${height}">
${text}
</foreignObject>
</svg>
`;
}
