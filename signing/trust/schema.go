package trust

import _ "embed"

//go:embed schema.json
var schema string

// Schema is the JSON schema of a trust.yaml, for editors: TestSchema holds it to what [Parse] takes.
func Schema() []byte { return []byte(schema) }
