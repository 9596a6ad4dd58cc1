package fleet

import _ "embed"

//go:embed schema.json
var schema []byte

// SchemaFile is the name that the schema has beside a fleet's files.
const SchemaFile = "fleet.schema.json"

// Schema is the JSON schema of fleet.yaml, for editors. Files that it includes have the same members but for the first
// eight. It says the same as [Read], but for what one part says of another.
func Schema() []byte { return append([]byte(nil), schema...) }
