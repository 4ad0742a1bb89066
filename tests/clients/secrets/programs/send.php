<?php
// Send the key to a URL and print the answer, with the curl extension as it is.
$handle = curl_init($argv[1]);
curl_setopt_array($handle, [
    CURLOPT_RETURNTRANSFER => true,
    CURLOPT_FAILONERROR => true,
    CURLOPT_TIMEOUT => 20,
    CURLOPT_HTTPHEADER => ["Authorization: Bearer " . getenv("API_KEY")],
]);
$answer = curl_exec($handle);
if ($answer === false) {
    fwrite(STDERR, curl_error($handle) . "\n");
    exit(1);
}
echo $answer;
