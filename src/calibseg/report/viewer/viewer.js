// Puts the maps of a page into NiiVue: image, confidence and mask, each with its own opacity.
"use strict";
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  for (const key of document.querySelectorAll(".key")) {
    const index = data.classes.indexOf(key.dataset.class);
    if (index > 0) key.style.background = `rgb(${data.colours[index].join(" ")})`;
  }
  const nv = new niivue.Niivue({ backColor: [0.08, 0.09, 0.11, 1], show3Dcrosshair: true, crosshairWidth: 0.3, crosshairWidthUnit: "percent", crosshairColor: [0.42, 0.74, 0.93, 0.7], multiplanarShowRender: 1, isRadiologicalConvention: true, logLevel: "error" });
  await nv.attachTo("view");
  for (const layer of data.layers) {
    const volume = await niivue.NVImage.loadFromBase64({ name: `${layer.name}.nii.gz`, base64: layer.data, opacity: layer.opacity, colormap: layer.colormap || "gray" });
    if (layer.name === "mask") {
      const parts = [0, 1, 2].map((c) => data.colours.map((colour) => colour[c]));
      volume.setColormapLabel({ R: parts[0], G: parts[1], B: parts[2], A: data.colours.map((_, i) => (i ? 255 : 0)), I: data.colours.map((_, i) => i), labels: data.classes });
    }
    nv.addVolume(volume);
  }
  data.layers.forEach((layer, index) => {
    const slider = document.createElement("input");
    Object.assign(slider, { type: "range", min: 0, max: 1, step: 0.05, value: layer.opacity, id: `opacity-${layer.name}` });
    slider.addEventListener("input", () => nv.setOpacity(index, Number(slider.value)));
    const label = document.createElement("label");
    label.append(layer.name, slider);
    $("layers").append(label);
  });
  const kinds = { multi: nv.sliceTypeMultiplanar, axial: nv.sliceTypeAxial, coronal: nv.sliceTypeCoronal, sagittal: nv.sliceTypeSagittal, render: nv.sliceTypeRender };
  $("slices").addEventListener("change", (event) => nv.setSliceType(kinds[event.target.value]));
  nv.setSliceType(kinds.multi);
  nv.onLocationChange = ({ mm, values }) => {
    const said = values.map((one, i) => {
      const layer = data.layers[i]?.name;
      return layer === "mask" ? data.classes[Math.round(one.value)] : `${layer} ${Number(one.value).toFixed(2)}`;
    });
    $("where").textContent = `${Array.from(mm).slice(0, 3).map((v) => v.toFixed(0)).join(", ")} mm: ${said.join(", ")}`;
  };
  nv.updateGLVolume();
  document.body.dataset.ready = String(nv.volumes.length);
})().catch((error) => {
  document.getElementById("where").textContent = `This browser cannot show it: ${error.message}`;
  document.body.dataset.failed = error.message;
});
