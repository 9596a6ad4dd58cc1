package strict

// Scan is CheckYAML with other limits.
var Scan = scan
