package strict

// TooMany is what bounds the values of a document.
var TooMany = tooMany
