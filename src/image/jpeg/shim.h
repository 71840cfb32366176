/* A narrow door to libjpeg-turbo. libjpeg reports errors by longjmp; every jump starts and ends in shim.c, so
 * that none crosses a frame of the caller. */
#ifndef MM_JPEG_SHIM_H
#define MM_JPEG_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Outcome of each call. After anything but MM_JPEG_OK the only call left is mm_jpeg_close. */
enum {
  MM_JPEG_OK = 0,
  MM_JPEG_DAMAGED = 1,     /* libjpeg refused the stream */
  MM_JPEG_TRUNCATED = 2,   /* the stream ends before the picture does */
  MM_JPEG_MEMORY = 3,      /* the memory limit, or the host's memory, does not suffice */
  MM_JPEG_SCANS = 4,       /* more scans than allowed */
  MM_JPEG_UNSUPPORTED = 5, /* a valid kind of JPEG that libjpeg does not decode */
};

/* Samples of the output. */
enum {
  MM_JPEG_RGB = 0,            /* 3 a pixel; grey sources are expanded */
  MM_JPEG_CMYK = 1,           /* 4 a pixel, as stored: no inversion */
  MM_JPEG_RAW = 2,            /* as many as the stream has components, colour not converted */
  MM_JPEG_RGB_FROM_YCBCR = 3, /* 3 a pixel, the stream being YCbCr whatever its markers say */
};

typedef struct mm_jpeg mm_jpeg;

typedef struct {
  const uint8_t* data; /* the stream; must outlive the handle */
  size_t size;
  const uint8_t* tables; /* an abbreviated stream with tables only, read first; may be null */
  size_t tables_size;
  uint64_t memory; /* bytes that libjpeg may allocate */
  uint32_t scans;  /* scans that are read at most */
  int32_t fill;    /* nonzero: a stream that ends early is treated as if it had its end marker */
} mm_jpeg_source;

typedef struct {
  uint32_t width;
  uint32_t height;
  uint32_t components; /* of the stream */
  uint64_t memory;     /* bytes that libjpeg will need beside its tables */
} mm_jpeg_shape;

/* Reads the header. *handle is set whenever the result is MM_JPEG_OK, and is then freed by mm_jpeg_close. */
int mm_jpeg_open(const mm_jpeg_source* source, mm_jpeg** handle, mm_jpeg_shape* shape);

/* Prepares the output; of a file with several scans this reads the whole stream. */
int mm_jpeg_start(mm_jpeg* handle, int output);

/* Decodes `rows` rows to `out`, `stride` bytes apart. */
int mm_jpeg_rows(mm_jpeg* handle, uint8_t* out, size_t stride, uint32_t rows);

/* Reads to the end marker. A stream that merely stops after its last row is accepted. */
int mm_jpeg_finish(mm_jpeg* handle);

void mm_jpeg_close(mm_jpeg* handle);

#endif
