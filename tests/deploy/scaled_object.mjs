// A ScaledObject on standard input, against the types that KEDA publishes; exits with 1 and a line
// for each fault.
import { readFileSync } from "node:fs";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";

try {
  new ScaledObject(JSON.parse(readFileSync(0, "utf8"))).validate();
} catch (error) {
  console.log(error.message);
  process.exitCode = 1;
}
