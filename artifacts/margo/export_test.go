package margo

// PlainJSON is for tests that turn the specification's YAML examples of JSON documents into JSON.
var PlainJSON = plainJSON
